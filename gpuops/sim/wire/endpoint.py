"""Routes HTTP paths to SOAP, VI/JSON, the vSphere Automation API and the simulator's own interface, and calls methods.

`Dispatcher` calls the method of the managed object that a request names. The request's wire (SOAP or VI/JSON) writes
its result or fault. An argument with a data object that lacks a required property is refused before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.errors import UsageError
from gpuops.sim.core.call import Call
from gpuops.sim.core.encoder import NAMESPACE, Encoding
from gpuops.sim.core.fragments import resolve
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.sessions import ClientSession
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.fault_injection.injector import Interruption
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.guests import real_guests
from gpuops.sim.services.property_collector import DEFAULT_MOID, PropertyCollector
from gpuops.sim.vcenter.authority import reading_privilege, refusal
from gpuops.sim.wire import soap, vijson
from gpuops.sim.wire.admin import PREFIX, Admin
from gpuops.sim.wire.automation import rest
from gpuops.sim.wire.automation.services import VapiServices
from gpuops.sim.wire.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.world import World

ANONYMOUS: Final = frozenset({"ServiceInstance", "SessionManager"})
"""Types whose properties may be read without a login, besides those declared System.Anonymous."""


class MethodCall(Protocol):
    """A call of a method, as one wire has it: SOAP or VI/JSON. `Fetch` is the read of one property."""

    @property
    def method(self) -> str: ...

    @property
    def receiver_type(self) -> str: ...

    @property
    def moid(self) -> str: ...

    @property
    def operation_id(self) -> str: ...

    @property
    def version(self) -> str:
        """The API version that the client speaks."""

    @property
    def wire(self) -> Callable[[str], Encoding]:
        """Returns the encoder of a version."""

    def arguments(self, info: Any) -> dict[str, Any]:
        """The parameters by name, as pyVmomi values. Raises a vmodl.fault for what cannot be read."""

    def property_path(self) -> str:
        """Return the path of the property that a Fetch reads."""

    def start_types(self) -> Iterable[str]:
        """The types of the objects that a bulk read starts from."""

    def reply(self, result: Any, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with a method's result."""

    def property_reply(self, fragment: bytes, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with the value of a property of this declared type."""

    def fault_reply(self, fault: Any) -> bytes:
        """The body of a reply with a fault."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a request: the token of a session ('' = none), the user agent and the address."""

    token: str = ""
    user_agent: str = ""
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a call: HTTP status, body, the token of a new session ('' = none), and how it is sent."""

    status: int
    body: bytes
    token: str = ""
    ending: Ending = Ending.WHOLE
    pace_s: float = 0.0


class Dispatcher:
    """Answers the calls of methods in one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def answer(self, request: MethodCall, sender: Sender) -> Answer:
        """Return the reply to one request. It does not raise: every failure becomes a typed fault in the reply."""
        with self.world.lock:
            self.world.clock.take_request()
            call = Call(request.method, request.version, self._session(sender), request.operation_id, wire=request.wire)
            with self.world.serving(call):
                answer = self._answer(request, call)
            if call.session is not None:
                call.session.active_at = self.world.clock.now()
            if call.opened is not None:
                call.opened.address, call.opened.user_agent = sender.address, sender.user_agent
            return answer

    def _session(self, sender: Sender) -> ClientSession | None:
        session = self.world.sessions.find(sender.token) if sender.token else None
        if session is not None:
            session.active_at = self.world.clock.now()
            session.calls += 1
        return session

    def _answer(self, request: MethodCall, call: Call) -> Answer:
        try:
            receiver = self._receiver(request, call)
        except vmodl.MethodFault as fault:
            return Answer(500, self._fault(fault, request))
        interruption = self.world.injector.before(call, receiver)
        if interruption is not None:
            return self._interrupt_answer(interruption, Answer(500, b""), request)
        answer = self._perform(receiver, request, call)
        interruption = self.world.injector.after(call, receiver)
        return answer if interruption is None else self._interrupt_answer(interruption, answer, request)

    def _interrupt_answer(self, interruption: Interruption, answer: Answer, request: MethodCall) -> Answer:
        if interruption.fault is not None:
            return Answer(500, self._fault(interruption.fault, request))
        if interruption.status:
            return Answer(interruption.status, interruption.body.encode())
        return replace(answer, ending=interruption.ending, pace_s=interruption.pace_s)

    def _perform(self, receiver: ManagedObject, request: MethodCall, call: Call) -> Answer:
        try:
            serve = self._fetch if request.method == "Fetch" else self._invoke
            status, body = serve(receiver, request, call)
        except vmodl.MethodFault as fault:
            return Answer(500, self._fault(fault, request))
        except Exception as bug:
            return Answer(500, self._fault(self._system_error(bug), request))
        return Answer(status, body, call.opened.cookie if call.opened else "")

    def _system_error(self, bug: Exception) -> Any:
        """Record a bug of the simulator and return the SystemError that the client gets."""
        self.world.record_bug(bug)
        reason = f"{type(bug).__name__}: {bug}"
        return vmodl.fault.SystemError(msg=f"A general system error occurred: {reason}", reason=reason)

    def _fault(self, fault: Any, request: MethodCall) -> bytes:
        try:
            return request.fault_reply(fault)
        except Exception as bug:
            return request.fault_reply(self._system_error(bug))

    def _receiver(self, request: MethodCall, call: Call) -> ManagedObject:
        """Return the object that a request calls: one of the session, such as a filter, or one of the inventory."""
        session = call.session
        if (request.receiver_type, request.moid) == (PropertyCollector.wsdl_name, DEFAULT_MOID):
            return self._collector(session)
        try:
            reference = VmomiSupport.GetWsdlType(NAMESPACE, request.receiver_type)(request.moid)
        except (KeyError, TypeError):
            raise vmodl.fault.InvalidType(
                msg=f"There is no managed object type {request.receiver_type}", argument=request.receiver_type
            ) from None
        session_object = session.objects.find(request.moid) if session else None
        if session_object is not None and isinstance(session_object.ref, type(reference)):
            return session_object
        return self.world.get(reference)

    def _collector(self, session: ClientSession | None) -> PropertyCollector:
        if session is None:
            return PropertyCollector(self.world, DEFAULT_MOID, ClientSession(self.world.sessions, "", "", "", "en"))
        collector = session.objects.find(DEFAULT_MOID)
        if not isinstance(collector, PropertyCollector):
            collector = PropertyCollector(self.world, DEFAULT_MOID, session)
            session.add(collector)
        return collector

    def _fetch(self, receiver: ManagedObject, request: MethodCall, call: Call) -> tuple[int, bytes]:
        """Return the reply to `Fetch` of one property. pyVmomi sends it for `vm.name`; the API's tables lack it."""
        path = request.property_path()
        self._require_login(call, anonymous=receiver.wsdl_name in ANONYMOUS, receiver=receiver)
        if call.session is not None:
            self.world.authority.require(call, receiver, "System.View")
        if path.startswith("info"):  # a client that polls a task moves virtual time
            self.world.tasks.pass_polling_time([receiver])
        fragment = self.world.fragments.read(receiver, path, call.encoding)
        if call.session is not None and self.world.authority.hidden(call.user, receiver, (path,)):
            raise refusal(receiver, reading_privilege(receiver.wsdl_name, path))
        return request.property_reply(fragment, resolve(receiver.wsdl_name, path, call.version).declared_type)

    def _invoke(self, receiver: ManagedObject, request: MethodCall, call: Call) -> tuple[int, bytes]:
        info = self._method_info(receiver, request, call.version)
        anonymous = call.session is None and self._is_anonymous(info, request)
        self._require_login(call, anonymous=anonymous, receiver=receiver)
        if info.privId and call.session is not None:
            self.world.authority.require(call, receiver, info.privId)
        arguments = request.arguments(info)
        require_whole(list(arguments.values()), call.version)
        result = getattr(receiver, request.method)(call, **arguments)
        return request.reply(result, info.result)

    def _method_info(self, receiver: ManagedObject, request: MethodCall, version: str) -> Any:
        """Return pyVmomi's description of the method. Raises NotSupported if the API has it but it is not simulated,
        MethodNotFound if the API does not have it."""
        try:
            info = VmomiSupport.GetWsdlMethod(NAMESPACE, request.method).info
        except KeyError:
            info = None
        is_known = info is not None and VmomiSupport.IsChildVersion(version, info.version)
        if is_known and request.method in receiver.methods:
            return info
        if is_known and isinstance(receiver.ref, info.type):
            raise vmodl.fault.NotSupported(msg=f"The method {request.method} is not simulated for {receiver.wsdl_name}")
        raise vmodl.fault.MethodNotFound(
            msg=f"{receiver.wsdl_name} has no method {request.method}", receiver=receiver.ref, method=request.method
        )

    def _is_anonymous(self, info: Any, request: MethodCall) -> bool:
        """Return whether a call needs no login; a bulk read only if anyone may read all objects that it starts from."""
        if not request.method.startswith("RetrieveProperties"):
            return bool(info.privId == "System.Anonymous")
        return all(name in ANONYMOUS for name in request.start_types())

    def _require_login(self, call: Call, *, anonymous: bool, receiver: ManagedObject) -> None:
        if call.session is None and not anonymous:
            raise vim.fault.NotAuthenticated(
                msg="The session is not authenticated.", object=receiver.ref, privilegeId="System.View"
            )


_TYPES_WITH_DEFAULT: Final = (str, int, float)
"""Types for which pyVmomi makes a value ('', 0, False) if none was sent."""


def require_whole(value: Any, version: str) -> None:
    """Raises vmodl.fault.InvalidRequest, in vCenter's words, if a required property is missing anywhere in `value`.

    Checks references, data objects, times and enumerations. Missing text, numbers and booleans cannot be detected:
    pyVmomi reads them as empty, 0 and false.
    """
    waiting = [value]
    while waiting:
        current_value = waiting.pop()
        if isinstance(current_value, list):
            waiting.extend(current_value)
        elif isinstance(current_value, VmomiSupport.DataObject):
            kind: Any = type(current_value)
            for name, required in _properties(kind, version):
                property_value = getattr(current_value, name)
                if property_value is not None:
                    waiting.append(property_value)
                elif required:
                    type_name = VmomiSupport.GetWsdlName(kind)
                    raise vmodl.fault.InvalidRequest(
                        msg=f"Required property {name} is missing from data object of type {type_name}"
                    )


@cache
def _properties(kind: Any, version: str) -> tuple[tuple[str, bool], ...]:
    """The properties that may hold data objects or be required, and whether they are required."""
    versions = VmomiSupport.parentMap[version]
    return tuple(
        (info.name, not info.flags & VmomiSupport.F_OPTIONAL and not issubclass(info.type, list))
        for info in kind._GetPropertyList()
        if info.version in versions
        and (issubclass(info.type, VmomiSupport.Enum) or not issubclass(info.type, _TYPES_WITH_DEFAULT))
    )


COOKIE: Final = "vmware_soap_session"
UNANSWERED_S: Final = 10.0
"""Time that passes with each request to a vCenter that is down."""

Route = Callable[[Incoming], Outgoing]


class Endpoint:
    """The paths of one simulated vCenter."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gzip = world.gzip
        self._dispatcher = Dispatcher(world)
        self._admin = Admin(world)
        self._vapi = VapiServices(world)
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/sdk/vimServiceVersions.xml"): self._service_versions,
            ("POST", "/sdk"): self._soap,
            ("POST", "/sdk/"): self._soap,
            **{("POST", path): self._storage_policies for path in soap.PATHS},
            ("POST", "/api"): self._rpc,
            ("POST", "/api/"): self._rpc,
        }

    def serve(self, incoming: Incoming) -> Outgoing:
        """Return the reply to one HTTP request; 404 for an unknown path. A simulator that is down resets connections,
        but its own interface below /gpuops-sim still answers."""
        path = urlsplit(incoming.target).path
        if path.startswith(PREFIX):
            return self._admin.serve(incoming)
        if self._is_down():
            return Outgoing(503, ending=Ending.RESET)
        route = self._routes.get((incoming.verb, path))
        if path == real_guests.TRANSFER_PATH and incoming.verb in ("GET", "PUT"):
            return self._guest_file(incoming)
        if route is None and path.startswith(rest.PREFIXES):
            route = self._answer_rest
        if route is None and incoming.verb in vijson.VERBS and vijson.is_served(path, self.world.api_version):
            route = self._vi_json
        if route is None:
            return Outgoing(404, b"404 Not Found\n", "text/plain")
        return route(incoming)

    def _is_down(self) -> bool:
        """Return whether vCenter is down. Each request to a vCenter that is down moves time, unless time is real."""
        world = self.world
        if world.down_until is None:
            return False
        with world.lock:
            if world.clock.mode is not ClockMode.REAL:
                world.clock.advance(UNANSWERED_S)
            if world.clock.now() >= world.down_until:
                world.down_until = None
            return world.down_until is not None

    def _guest_file(self, incoming: Incoming) -> Outgoing:
        """Transfer a file to a guest (PUT) or from it (GET). The token is from the guest operation that began it."""
        token = parse_qs(urlsplit(incoming.target).query).get("token", [""])[0]
        upload = incoming.verb == "PUT"
        with self.world.lock:
            transfer = self.world.guests.transfers.take(token, upload=upload)
            if transfer is None:
                return Outgoing(404, b"no such transfer\n", "text/plain")
            if upload and len(incoming.body) != transfer.size:
                return Outgoing(400, b"the file does not have the announced size\n", "text/plain")
            try:
                if upload:
                    real_guests.write(transfer, incoming.body)
                    return Outgoing(200)
                return Outgoing(200, real_guests.read(transfer), "application/octet-stream")
            except (OSError, UsageError) as error:
                return Outgoing(500, f"{error}\n".encode(), "text/plain")

    def _service_versions(self, incoming: Incoming) -> Outgoing:
        return Outgoing(200, soap.service_versions(self.world.api_version))

    def _soap(self, incoming: Incoming) -> Outgoing:
        version = soap.negotiate(incoming.headers.get("soapaction", ""), self.world.api_version)
        try:
            request = soap.parse(incoming.body, version)
        except soap.InvalidEnvelope as error:
            return Outgoing(500, soap.fault_reply(vmodl.fault.InvalidRequest(msg=str(error)), version))
        answer = self._answer(request, incoming, _cookie(incoming, COOKIE))
        headers = {"Set-Cookie": f'{COOKIE}="{answer.token}"; Path=/; HttpOnly'} if answer.token else {}
        return Outgoing(answer.status, answer.body, headers=headers, ending=answer.ending, pace_s=answer.pace_s)

    def _storage_policies(self, incoming: Incoming) -> Outgoing:
        action, cookie = incoming.headers.get("soapaction", ""), _cookie(incoming, COOKIE)
        return Outgoing(*soap.answer_storage_policies(self.world, action, incoming.body, cookie))

    def _vi_json(self, incoming: Incoming) -> Outgoing:
        request = vijson.parse(incoming)
        answer = self._answer(request, incoming, incoming.headers.get(rest.SESSION_HEADER, ""))
        return Outgoing(
            answer.status,
            answer.body,
            "application/json",
            headers={rest.SESSION_HEADER: answer.token} if answer.token else {},
            ending=answer.ending,
            pace_s=answer.pace_s,
        )

    def _answer(self, request: MethodCall, incoming: Incoming, token: str) -> Answer:
        sender = Sender(token, incoming.headers.get("user-agent", ""), incoming.address)
        return self._dispatcher.answer(request, sender)

    def _rpc(self, incoming: Incoming) -> Outgoing:
        with self.world.lock, self.world.serving(self._automation_call()):
            status, document = rest.answer_rpc(self._vapi, incoming.body)
        return Outgoing(status, document, "application/json")

    def _answer_rest(self, incoming: Incoming) -> Outgoing:
        name, headers = rest.SESSION_HEADER, dict(incoming.headers)
        headers.setdefault(name, _cookie(incoming, name))
        with self.world.lock:
            call = self._automation_call()
            with self.world.serving(call):
                status, document = rest.answer(self._vapi, incoming.verb, incoming.target, headers, incoming.body)
        root = incoming.target[: incoming.target.index("/", 1)]  # /rest or /api
        cookie = {"Set-Cookie": f"{name}={call.opened.cookie}; Path={root}; HttpOnly"} if call.opened else {}
        return Outgoing(status, document, "application/json", headers=cookie)

    def _automation_call(self) -> Call:
        self.world.clock.take_request()
        return Call(method="automation", version="")


def _cookie(incoming: Incoming, name: str) -> str:
    cookies = (pair.strip().partition("=") for pair in incoming.headers.get("cookie", "").split(";"))
    return next((token.strip('"') for key, _, token in cookies if key == name), "")
