"""Calls the method of the managed object that a SOAP request names, and encodes its result or fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.core.encoder import NAMESPACE, EncodedXml
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.sessions import ClientSession
from gpuops.sim.fault_injection.injector import Interruption
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.services.property_collector import DEFAULT_MOID, PropertyCollector
from gpuops.sim.vcenter.authority import reading_privilege, refusal
from gpuops.sim.wire import soap

if TYPE_CHECKING:
    from gpuops.sim.world import World

ANONYMOUS: Final = frozenset({"ServiceInstance", "SessionManager"})
"""Types whose properties may be read without a login, besides those declared System.Anonymous."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One POST to /sdk."""

    body: bytes
    soap_action: str = ""
    cookie: str = ""
    user_agent: str = ""
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class SoapAnswer:
    """What goes back: HTTP status, XML, the cookie of a new session ('' = none), and how it comes."""

    status: int
    body: bytes
    cookie: str = ""
    ending: Ending = Ending.WHOLE
    pace_s: float = 0.0


class Dispatcher:
    """Answers the SOAP requests of one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def answer(self, envelope: Envelope) -> SoapAnswer:
        """The reply to one request; every failure is a typed fault."""
        version = soap.negotiate(envelope.soap_action, self.world.api_version)
        try:
            request = soap.parse(envelope.body)
        except soap.InvalidEnvelope as error:
            return SoapAnswer(500, soap.fault_reply(vmodl.fault.InvalidRequest(msg=str(error)), version))
        with self.world.lock:
            self.world.clock.take_request()
            call = Call(request.method, version, self._session(envelope), request.operation_id)
            with self.world.serving(call):
                answer = self._answer(request, call)
            if call.session is not None:
                call.session.active_at = self.world.clock.now()
            if call.opened is not None:
                call.opened.address, call.opened.user_agent = envelope.address, envelope.user_agent
            return answer

    def _session(self, envelope: Envelope) -> ClientSession | None:
        session = self.world.sessions.find(envelope.cookie) if envelope.cookie else None
        if session is not None:
            session.active_at = self.world.clock.now()
            session.calls += 1
        return session

    def _answer(self, request: soap.SoapRequest, call: Call) -> SoapAnswer:
        try:
            receiver = self._receiver(request, call)
        except vmodl.MethodFault as fault:
            return SoapAnswer(500, self._fault(fault, call))
        interruption = self.world.injector.before(call, receiver)
        if interruption is not None:
            return self._interrupted(interruption, SoapAnswer(500, b""), call)
        answer = self._perform(receiver, request, call)
        interruption = self.world.injector.after(call, receiver)
        return answer if interruption is None else self._interrupted(interruption, answer, call)

    def _interrupted(self, interruption: Interruption, answer: SoapAnswer, call: Call) -> SoapAnswer:
        if interruption.fault is not None:
            return SoapAnswer(500, self._fault(interruption.fault, call))
        if interruption.status:
            return SoapAnswer(interruption.status, interruption.body.encode())
        return replace(answer, ending=interruption.ending, pace_s=interruption.pace_s)

    def _perform(self, receiver: ManagedObject, request: soap.SoapRequest, call: Call) -> SoapAnswer:
        try:
            serve = self._fetch if request.method == "Fetch" else self._invoke
            body = serve(receiver, request, call)
        except vmodl.MethodFault as fault:
            return SoapAnswer(500, self._fault(fault, call))
        except Exception as bug:
            return SoapAnswer(500, self._fault(self._our_bug(bug), call))
        return SoapAnswer(200, body, call.opened.cookie if call.opened else "")

    def _our_bug(self, bug: Exception) -> Any:
        self.world.record_bug(bug)
        reason = f"{type(bug).__name__}: {bug}"
        return vmodl.fault.SystemError(msg=f"A general system error occurred: {reason}", reason=reason)

    def _fault(self, fault: Any, call: Call) -> bytes:
        try:
            return soap.fault_reply(fault, call.version)
        except Exception as bug:
            return soap.fault_reply(self._our_bug(bug), call.version)

    def _receiver(self, request: soap.SoapRequest, call: Call) -> ManagedObject:
        session = call.session
        if request.moid == DEFAULT_MOID:
            return self._collector(session)
        try:
            named = VmomiSupport.GetWsdlType(NAMESPACE, request.receiver_type)(request.moid)
        except (KeyError, TypeError):
            raise vmodl.fault.InvalidType(
                msg=f"There is no managed object type {request.receiver_type}", argument=request.receiver_type
            ) from None
        found = session.objects.find(request.moid) if session else None
        if found is not None and isinstance(found.ref, type(named)):
            return found
        obj: ManagedObject = self.world.get(named)
        return obj

    def _collector(self, session: ClientSession | None) -> PropertyCollector:
        if session is None:
            return PropertyCollector(self.world, DEFAULT_MOID, ClientSession(self.world.sessions, "", "", "", "en"))
        collector = session.objects.find(DEFAULT_MOID)
        if not isinstance(collector, PropertyCollector):
            collector = PropertyCollector(self.world, DEFAULT_MOID, session)
            session.add(collector)
        return collector

    def _fetch(self, receiver: ManagedObject, request: soap.SoapRequest, call: Call) -> bytes:
        """The `Fetch` of one property: not in the API's tables, but what pyVmomi sends for `vm.name`."""
        path = soap.text_parameter(request, "prop")
        self._require_login(call, anonymous=receiver.wsdl_name in ANONYMOUS, receiver=receiver)
        if call.session is not None:
            self.world.authority.require(call, receiver, "System.View")
        if path.startswith("info"):
            self.world.tasks.look([receiver])
        fragment = self.world.fragments.read(receiver, path, call.version)
        if call.session is not None and self.world.authority.hidden(call.user, receiver, (path,)):
            raise refusal(receiver, reading_privilege(receiver.wsdl_name, path))
        returned = [b"<returnval", fragment[4:-6], b"</returnval>"] if fragment else []
        return soap.reply(request.method, EncodedXml(returned), object, call.version)

    def _invoke(self, receiver: ManagedObject, request: soap.SoapRequest, call: Call) -> bytes:
        info = self._method_info(receiver, request, call.version)
        self._require_login(call, anonymous=self._is_anonymous(info, request), receiver=receiver)
        if info.privId and call.session is not None:
            self.world.authority.require(call, receiver, info.privId)
        arguments = soap.arguments(request, info, call.version)
        result = getattr(receiver, request.method)(call, **arguments)
        return soap.reply(request.method, result, info.result, call.version)

    def _method_info(self, receiver: ManagedObject, request: soap.SoapRequest, version: str) -> Any:
        try:
            info = VmomiSupport.GetWsdlMethod(NAMESPACE, request.method).info
        except KeyError:
            info = None
        known = info is not None and VmomiSupport.IsChildVersion(version, info.version)
        if known and request.method in receiver.methods:
            return info
        if known and isinstance(receiver.ref, info.type):
            raise vmodl.fault.NotSupported(msg=f"The method {request.method} is not simulated for {receiver.wsdl_name}")
        raise vmodl.fault.MethodNotFound(
            msg=f"{receiver.wsdl_name} has no method {request.method}", receiver=receiver.ref, method=request.method
        )

    def _is_anonymous(self, info: Any, request: soap.SoapRequest) -> bool:
        """What needs no login; of the bulk reads, only those that start from an object anyone may read."""
        if not request.method.startswith("RetrieveProperties"):
            return bool(info.privId == "System.Anonymous")
        starts = [
            element.get("type")
            for element in request.element.iter()
            if isinstance(element.tag, str) and element.tag.rsplit("}", 1)[-1] == "obj"
        ]
        return all(name in ANONYMOUS for name in starts)

    def _require_login(self, call: Call, *, anonymous: bool, receiver: ManagedObject) -> None:
        if call.session is None and not anonymous:
            raise vim.fault.NotAuthenticated(
                msg="The session is not authenticated.", object=receiver.ref, privilegeId="System.View"
            )
