"""The HTTP interface of the simulator itself, below /gpuops-sim: ledger, clock, state and fault rules."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from gpuops.errors import GpuopsError, UsageError
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.wire.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.world import World

PREFIX: Final = "/gpuops-sim/"


class Admin:
    """Serves the paths below /gpuops-sim as JSON, for clients with the server's user and password (HTTP basic)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._routes: dict[tuple[str, str], Callable[[Incoming], Any]] = {
            ("GET", "ledger"): self._ledger,
            ("GET", "bugs"): lambda incoming: {"bugs": self.world.bugs},
            ("GET", "clock"): lambda incoming: self._clock(),
            ("POST", "clock"): self._advance,
            ("GET", "state"): lambda incoming: self._state_hooks()[0](),  # (save, restore)
            ("PUT", "state"): self._restore,
            ("POST", "inject"): self._inject,
            ("DELETE", "inject"): self._clear_injected,
        }

    def serve(self, incoming: Incoming) -> Outgoing:
        """Return the JSON reply to a request below /gpuops-sim/.

        Its status is 401 without a login, 404 for an unknown path, 400 for a request that is refused.
        """
        if not self.world.sessions.accepts(*basic_login(incoming.headers)):
            return _json(401, {"error": "log in with the server's user and password"})
        route = self._routes.get((incoming.verb, urlsplit(incoming.target).path.removeprefix(PREFIX)))
        if route is None:
            return _json(404, {"error": f"there is no {incoming.verb} {incoming.target}"})
        try:
            with self.world.lock:
                self.world.clock.run_due()
                return _json(200, route(incoming))
        except GpuopsError as error:
            return _json(400, {"error": error.message})
        except ValueError as error:
            return _json(400, {"error": f"the request cannot be read: {error}"})

    def _ledger(self, incoming: Incoming) -> Any:
        after = parse_qs(urlsplit(incoming.target).query).get("after", ["0"])[0]
        return {"entries": self.world.ledger.to_json(after_sequence=int(after))}

    def _clock(self) -> Any:
        clock = self.world.clock
        return {"mode": clock.mode.value, "now": clock.now().isoformat()}

    def _advance(self, incoming: Incoming) -> Any:
        self.world.clock.advance(float(json.loads(incoming.body)["advance_s"]))
        self.world.changed.notify_all()
        return self._clock()

    def _restore(self, incoming: Incoming) -> Any:
        self._state_hooks()[1](json.loads(incoming.body))
        self.world.fragments.clear()
        self.world.changed.notify_all()
        return {}

    def _state_hooks(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        if self.world.state_hooks is None:
            raise UsageError(
                "this simulated vCenter was not built from a scenario, so its state cannot be saved or restored"
            )
        return self.world.state_hooks

    def _inject(self, incoming: Incoming) -> Any:
        self.world.injector.add(Rule.from_json(json.loads(incoming.body)))
        return {}

    def _clear_injected(self, incoming: Incoming) -> Any:
        self.world.injector.clear()
        return {}


def basic_login(headers: Mapping[str, str]) -> tuple[str, str]:
    """User and password of an HTTP basic login; empty without one."""
    kind, _, encoded = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def _json(status: int, document: Any) -> Outgoing:
    return Outgoing(status, json.dumps(document).encode(), "application/json")
