"""Endpoint: which path of the simulated vCenter answers what."""

from __future__ import annotations

from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gpuops.sim import soap
from gpuops.sim.dispatch import Dispatcher, Envelope
from gpuops.sim.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.world import World

COOKIE: Final = "vmware_soap_session"

Route = Callable[[Incoming], Outgoing]


class Endpoint:
    """The paths of one simulated vCenter."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gzip = world.gzip
        self._dispatcher = Dispatcher(world)
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/sdk/vimServiceVersions.xml"): self._service_versions,
            ("POST", "/sdk"): self._soap,
            ("POST", "/sdk/"): self._soap,
        }

    def serve(self, incoming: Incoming) -> Outgoing:
        """The reply to one HTTP request; 404 for a path that nothing answers."""
        path = urlsplit(incoming.target).path
        route = self._routes.get((incoming.verb, path))
        return route(incoming) if route is not None else Outgoing(404, b"404 Not Found\n", "text/plain")

    def _service_versions(self, incoming: Incoming) -> Outgoing:
        return Outgoing(200, soap.service_versions(self.world.api_version))

    def _soap(self, incoming: Incoming) -> Outgoing:
        envelope = Envelope(
            incoming.body,
            soap_action=incoming.headers.get("SOAPAction", ""),
            cookie=_session_cookie(incoming.headers.get("Cookie", "")),
            user_agent=incoming.headers.get("User-Agent", ""),
            address=incoming.address,
        )
        answer = self._dispatcher.answer(envelope)
        headers = {"Set-Cookie": f'{COOKIE}="{answer.cookie}"; Path=/; HttpOnly'} if answer.cookie else {}
        return Outgoing(answer.status, answer.body, headers=headers)


def _session_cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
