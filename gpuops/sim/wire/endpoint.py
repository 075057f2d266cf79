"""Routes HTTP paths to SOAP, VI/JSON, the vSphere Automation API and the simulator's own interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from pyVmomi import vmodl

from gpuops.errors import UsageError
from gpuops.sim.core.call import Call
from gpuops.sim.core.clock import ClockMode
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.guests import real_guests
from gpuops.sim.wire import soap, storage_policies, vijson
from gpuops.sim.wire.admin import PREFIX, Admin
from gpuops.sim.wire.automation import rest
from gpuops.sim.wire.automation.services import VapiServices
from gpuops.sim.wire.dispatch import Answer, Dispatcher, MethodCall, Sender
from gpuops.sim.wire.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.world import World

COOKIE: Final = "vmware_soap_session"
UNANSWERED_S: Final = 10.0
"""Time that a try to reach a vCenter costs which is down."""

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
            **{("POST", path): self._storage_policies for path in storage_policies.PATHS},
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
        """Whether vCenter restarts just now. Each request to it then moves time, unless that is real."""
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
        return Outgoing(*storage_policies.answer(self.world, action, incoming.body, cookie))

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
