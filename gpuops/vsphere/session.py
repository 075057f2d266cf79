"""One login to one vCenter, which always logs out at its end; `connection` adds the reads and changes of gpuops.

Login and bulk reads use `transport.wire`. pyVmomi, which sends every change, is imported when it is first needed and
uses the same login through `transport.stub`. Its own session stub is not used: it sends a call again when the reply is
lost, and would power on a VM twice. If the session has ended, a read logs in again and is repeated; a change is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import Any, Final, Self, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, ProtocolError, Refused
from gpuops.model.vcenter.login import WrongPassword
from gpuops.model.vcenter.target import Target
from gpuops.model.vcenter.task import LEASE_OPERATION, TaskRef
from gpuops.plan.core.versions import TOO_OLD_NEXT, why_only_read
from gpuops.vsphere.faults import fault_error, translate
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.messages import REFERENCE, child, children, escape_text, text, texts
from gpuops.vsphere.transport.wire import JsonLogin, SessionEnded, Wire, WireFault, negotiate, offers_vi_json

CANCEL_OPERATION: Final = "gpuops-cancel-"
"""Prefix of the operation ids that cancel a queued task."""

_UNCOUNTED_OPERATIONS: Final = (LEASE_OPERATION, CANCEL_OPERATION)
"""Prefixes of operation ids that do not count as changes of the admin."""


class ChangeRecord:
    """Records whether a session changed something: an error that ends a command reports it.

    The lease of a run, and the cancellation of a queued task, are not counted.
    """

    def __init__(self) -> None:
        self._done = False
        self._unknown = False
        self._under_way: set[str] = set()
        """Tasks whose end is not known."""

    @property
    def applied(self) -> bool | None:
        """Whether something was changed; None = not known: a reply was lost, or a task is still under way."""
        if self._done:
            return True
        return None if self._unknown or self._under_way else False

    def note_accepted(self, answer: Any, op_id: str) -> None:
        """Record that vCenter accepted a call. If it returned a task, the end of the task decides."""
        if op_id.startswith(_UNCOUNTED_OPERATIONS):
            return
        task = getattr(answer, "_moId", None)
        if task is None:
            self._done = True
        else:
            self._under_way.add(str(task))

    def note_lost(self, op_id: str) -> None:
        """Record that the reply of a call was lost."""
        self._unknown = self._unknown or not op_id.startswith(_UNCOUNTED_OPERATIONS)

    def note_ended(self, task: str, error: GpuopsError | None) -> None:
        """Record the end of a task. After OutcomeUnknown it stays unknown whether something was changed."""
        if task not in self._under_way or isinstance(error, OutcomeUnknown):
            return
        self._under_way.discard(task)
        self._done = self._done or error is None


class OptionalRead(AbstractContextManager[None, bool]):
    """Suppresses the error of a read that vCenter refuses: the result is then unknown. NotConnected is raised."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, GpuopsError) and not isinstance(error, NotConnected)


Answer = TypeVar("Answer")

_INSTANCE: Final = ("ServiceInstance", "ServiceInstance")
_NEEDED_MANAGERS: Final = frozenset({"propertyCollector", "rootFolder", "sessionManager", "viewManager"})
"""Singletons that every vCenter has, and that every login and read needs."""


class Session:
    """A logged-in session.

    `api_version` is the negotiated version ("8.0.3.0"), `about` its AboutInfo, and `service` its singletons by their
    name in ServiceContent, as (type, moid). `content` is pyVmomi's ServiceContent, read on first use.
    """

    def __init__(self, target: Target) -> None:
        """Connect and log in. Raises NotConnected and its subclasses, with the address in the message."""
        self.target = target
        self._relogin = threading.Lock()
        self._logins = 0
        self._cookie = ""
        self.login_key: str | None = None
        """The key of vCenter's UserSession; None if vCenter did not return it."""
        self._idle_wires: list[tuple[Wire, float]] = []
        """Idle connections, each with the time of its last use."""
        self.idle_views: dict[tuple[str, str], str] = {}
        """Container views that no read uses now, by the cookie of their login and their types; they end with it."""
        self.vi_json: JsonLogin | None = None
        """The login over VI/JSON for bulk reads; None = bulk reads use SOAP."""
        self.vi_json_alone = False
        """Whether a read over VI/JSON that fails is not repeated over SOAP."""
        self.warn: Callable[[str], None] = lambda warning: None
        self.changes = ChangeRecord()
        self.only_reads = False
        """Whether every change is refused before it is sent."""
        self.attribute_keys: dict[str, int] = {}
        """Keys of the custom attributes by name, as far as they have been read."""
        self.counter_keys: dict[str, int] | None = None
        """Keys of the performance counters by name; None = they have not been read."""
        try:
            connection = network.open_connection(target, network.tls_context(target))
            try:
                self.api_version = negotiate(connection, target.address)
            except BaseException:
                connection.close()
                raise
        except (*network.LOST_ERRORS, network.UnreadableReply) as error:
            raise network.connection_error(target, error) from error
        self._idle_wires.append((Wire(target, self.api_version, connection=connection), clock.passed_s()))
        with self.wire() as wire:
            self.service, self.about = self._read_service_content(wire)
            self._login(wire)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Log out, which also ends the session's property collectors and views.

        A vCenter that cannot be reached any more ends the session by itself when it idles.
        """
        self._leave_vi_json()
        self._logout()
        for wire, _ in self._idle_wires:
            wire.close()
        if "stub" in self.__dict__:
            self.stub.DropConnections()

    def _logout(self) -> None:
        with suppress(NotConnected, SessionEnded, WireFault), self.wire() as wire:
            wire.ask("Logout", self.service["sessionManager"])

    @property
    def offers_vi_json(self) -> bool:
        """Whether a vCenter of this version offers VI/JSON."""
        return offers_vi_json(self.api_version)

    def read_over_vi_json(self, *, alone: bool = False) -> None:
        """Use VI/JSON for bulk reads from now on. With `alone` a read that fails is not repeated over SOAP."""
        self.vi_json = JsonLogin(self.target, self.api_version, self.service["sessionManager"])
        self.vi_json_alone = alone

    def read_over_soap(self, reason: str = "") -> None:
        """Use SOAP for bulk reads from now on, and warn if there is a reason."""
        self._leave_vi_json()
        if reason:
            self.warn(f"gpuops reads over SOAP from now on, because VI/JSON failed: {reason}")

    def _leave_vi_json(self) -> None:
        login, self.vi_json = self.vi_json, None
        if login is not None and login.key:
            with suppress(NotConnected), self.wire() as wire:
                login.log_out(wire)

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """Provide a connection of this session that nothing else uses within the block.

        An idle connection is used again: a TLS handshake costs more than a small read.
        """
        wire = self._pop_idle_wire() or Wire(self.target, self.api_version)
        wire.cookie = self._cookie
        try:
            yield wire
        except BaseException:
            wire.close()  # the connection may still contain the rest of a reply
            raise
        self._idle_wires.append((wire, clock.passed_s()))

    def _pop_idle_wire(self) -> Wire | None:
        """Return an idle connection, closed if it was idle for too long: its next call then opens it again."""
        try:
            wire, last_used_s = self._idle_wires.pop()
        except IndexError:
            return None
        if clock.passed_s() - last_used_s > network.IDLE_CONNECTION_S:
            wire.close()
        return wire

    @cached_property
    def stub(self) -> Any:
        """pyVmomi's way into the same session."""
        from gpuops.vsphere.transport.stub import Stub

        return Stub(self.target, self.api_version, self._cookie)

    @cached_property
    def instance(self) -> Any:
        from pyVmomi import vim

        return vim.ServiceInstance(_INSTANCE[1], self.stub)

    @cached_property
    def content(self) -> Any:
        """The singletons as pyVmomi's ServiceContent, without the AboutInfo (`about`)."""
        from pyVmomi import vim

        known_names = {field.name for field in vim.ServiceInstanceContent._GetPropertyList()}
        references = {name: reference for name, reference in self.service.items() if name in known_names}
        with self.decoding("RetrieveServiceContent"):
            return vim.ServiceInstanceContent(
                **{name: self.managed_object(*reference) for name, reference in references.items()}
            )

    def managed_object(self, kind: str, ref: str) -> Any:
        """pyVmomi's object for a managed object id of this type (`VirtualMachine`). Raises ProtocolError for no id."""
        from pyVmomi import VmomiSupport

        if REFERENCE.fullmatch(ref) is None:
            raise ProtocolError(
                f"{ref!r} is not the id of a {kind}", hint="gpuops inventory --output json contains the ids"
            )
        return VmomiSupport.GetWsdlType("urn:vim25", kind)(ref, self.stub)

    def vm(self, ref: str) -> Any:
        return self.managed_object("VirtualMachine", ref)

    def host(self, ref: str | None) -> Any:
        """Return the HostSystem of that id; None stays None: vCenter selects a host."""
        return None if ref is None else self.managed_object("HostSystem", ref)

    def retrieve(self, spec: Any, max_objects: int, *, subject: str = "") -> list[Any]:
        """Return the ObjectContents of all pages of one RetrievePropertiesEx, as pyVmomi objects.

        Raises NotConnected and its subclasses, ProtocolError for more than `max_objects` or an empty page.
        """
        from pyVmomi import vmodl

        collector = self.content.propertyCollector
        page = self.read(
            collector.RetrievePropertiesEx, [spec], vmodl.query.PropertyCollector.RetrieveOptions(), subject=subject
        )
        objects: list[Any] = []
        while page is not None:
            objects += page.objects
            # an empty page that announces another one: a server could keep gpuops reading without end
            if len(objects) > max_objects or (page.token and not page.objects):
                raise ProtocolError(
                    f"{self.target.address} returned more than the {max_objects} objects of a read, or an empty page",
                    hint=network.NOT_USED_HINT,
                )
            page = self.read(collector.ContinueRetrievePropertiesEx, page.token) if page.token else None
        return objects

    def read_properties(
        self, objects: Sequence[Any], paths: Sequence[str], *, subject: str = "", skip_removed: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return the properties of managed objects of one type, by id and path, in one read.

        With `skip_removed`, objects that do not exist any more are left out; otherwise the read fails.
        """
        from pyVmomi import vmodl

        if not objects:
            return {}
        query = vmodl.query.PropertyCollector
        spec = query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=managed_object) for managed_object in objects],
            propSet=[query.PropertySpec(type=type(objects[0]), pathSet=list(paths), all=False)],
            reportMissingObjectsInResults=skip_removed,
        )
        contents = self.retrieve(spec, len(objects), subject=subject)
        with self.decoding("RetrievePropertiesEx"):
            return {
                str(content.obj._moId): {prop.name: prop.val for prop in content.propSet or ()} for content in contents
            }

    def read(self, call: Callable[..., Answer], *arguments: Any, subject: str = "") -> Answer:
        """Return the answer of a call that changes nothing. It is repeated once if the session or connection broke off.

        Raises NotConnected and its subclasses, or the error of its fault.
        """
        from pyVmomi import vmodl

        try:
            return self._call_with_retry(call, *arguments)
        except vmodl.MethodFault as fault:
            raise translate(fault, subject) from fault
        except (*network.LOST_ERRORS, *network.UNREADABLE_ERRORS) as error:
            raise network.connection_error(self.target, error) from error

    def _call_with_retry(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        from pyVmomi import vim

        logins_before = self._logins
        try:
            return call(*arguments)
        except vim.fault.NotAuthenticated:
            self.login_again(logins_before)
        except network.BROKEN_OFF:
            pass  # it changes nothing: repeat it once
        return call(*arguments)

    def decoding(self, call_name: str) -> AbstractContextManager[None]:
        """Return a context for code that decodes the reply to the call, see `network.decoding`."""
        return network.decoding(self.target.address, call_name)

    def change(self, call: Callable[..., Answer], *arguments: Any, subject: str, op_id: str) -> Answer:
        """Return the answer of a call that changes something. It is sent exactly once, with `op_id` in its header.

        Raises OutcomeUnknown if the reply was lost: the caller must then read vCenter before any further change.
        Raises Refused, with nothing sent, if the API is too old for changes by gpuops.
        """
        from pyVmomi import VmomiSupport, vmodl

        self.refuse_change(subject)
        headers = VmomiSupport.GetRequestContext()  # of this thread
        headers["operationID"] = op_id
        try:
            answer = call(*arguments)
            self.changes.note_accepted(answer, op_id)
            return answer
        except vmodl.MethodFault as fault:
            raise translate(fault, subject) from fault
        except (*network.LOST_ERRORS, *network.UNREADABLE_ERRORS) as error:
            self.changes.note_lost(op_id)
            raise OutcomeUnknown(
                f"{subject}: the reply was lost ({type(error).__name__}); whether it happened is not known yet",
                hint="gpuops reads vCenter before it does anything else",
            ) from error
        finally:
            headers.pop("operationID", None)

    def start_task(self, call: Callable[..., Any], *arguments: Any, subject: str, op_id: str) -> TaskRef:
        """Return the task that a call starts. Raises as `change`, and OutcomeUnknown for an answer without a task."""
        from pyVmomi import vim

        task = self.change(call, *arguments, subject=subject, op_id=op_id)
        if not isinstance(task, vim.Task):
            raise OutcomeUnknown(f"{subject}: vCenter answered without a task; whether it happened is not known yet")
        return TaskRef(str(task._moId))

    def refuse_change(self, subject: str) -> None:
        """Raise Refused if this session only reads, or the API is too old for changes by gpuops."""
        if self.only_reads:
            raise Refused(
                f"{subject}: this command only reads vCenter, so gpuops does not send the change",
                hint="report this as an error of gpuops; nothing was changed",
            )
        if reason := why_only_read(self.api_version):
            raise Refused(f"{subject}: {reason}", hint=TOO_OLD_NEXT)

    @property
    def applied(self) -> bool | None:
        """Whether this session changed something; None = not known."""
        return self.changes.applied

    def login_again(self, logins_before: int) -> str:
        """Log in again and return the cookie. If `logins` is not `logins_before` any more, another thread has logged in
        meanwhile: return the cookie of that login.

        Needed after a restart of vCenter (assumption: sessions-after-restart).
        """
        with self._relogin:
            if self._logins == logins_before:
                # The old session may still exist, and would then count towards the session limit for half an hour.
                self._logout()
                with self.wire() as wire:
                    wire.cookie = ""
                    self._login(wire)
            return self._cookie

    @property
    def logins(self) -> int:
        """The number of logins of this session."""
        return self._logins

    def _read_service_content(self, wire: Wire) -> tuple[Mapping[str, tuple[str, str]], Mapping[str, str | None]]:
        """Return vCenter's singletons by name, as (type, moid), and its AboutInfo, which need no login.

        Raises ProtocolError if the server is not a vCenter.
        """
        try:
            content = child(wire.ask("RetrieveServiceContent", _INSTANCE), "returnval")
        except (SessionEnded, WireFault) as fault:
            message = f"{self.target.address} does not answer like a vCenter: {fault}"
            raise ProtocolError(message, hint="check the address") from fault
        about = texts(child(content, "about"))
        if about.get("apiType") != "VirtualCenter":
            raise network.UnusableVcenter(
                f"{self.target.address} is a single ESXi host, not a vCenter", hint="name the vCenter that manages it"
            )
        with network.decoding(self.target.address, "RetrieveServiceContent"):
            references = {
                # the name of the element, without its XML namespace
                element.tag.rpartition("}")[2]: (element.get("type", ""), element.text or "")
                for element in children(content)
            }
        managers = {name: (kind, ref) for name, (kind, ref) in references.items() if kind and REFERENCE.fullmatch(ref)}
        if missing := _NEEDED_MANAGERS - managers.keys():
            raise ProtocolError(
                f"{self.target.address} does not answer like a vCenter: it returns no {sorted(missing)[0]}",
                hint="check the address",
            )
        return managers, about

    def _login(self, wire: Wire) -> None:
        user_name = f"<userName>{escape_text(self.target.username)}</userName>"
        password = f"<password>{escape_text(self.target.password.reveal())}</password>"
        try:
            reply = wire.ask("Login", self.service["sessionManager"], user_name + password)
        except SessionEnded as ended:
            raise self._login_refusal("it ended the new session at once") from ended
        except WireFault as fault:
            # from None: the chain of the fault contains the request, which has the password
            if fault.fault == "InvalidLogin":
                raise self._login_refusal("user name or password refused", WrongPassword) from None
            raise self._login_refusal(fault_error(fault.fault, str(fault)).message) from None
        self._cookie, self.login_key = wire.cookie, text(child(reply, "returnval"), "key")
        self._logins += 1
        if "stub" in self.__dict__:  # a cached property: a stub that exists gets the new cookie
            self.stub.cookie = self._cookie

    def _login_refusal(self, reason: str, kind: type[LoginRefused] = LoginRefused) -> GpuopsError:
        return kind(
            f"{self.target.address} refuses {self.target.username}: {reason}",
            hint="check the user name, and where gpuops reads the password (not tried again: accounts lock)",
        )
