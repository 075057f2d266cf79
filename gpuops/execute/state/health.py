"""Report over HTTP whether a service works: GET /healthz is 200 if its last look is recent, and 503 otherwise.

GET /readyz is 503 also if that look could not reach what the service needs, for example a runner's PostgreSQL; a
restart of the service would not help then. It is for load balancers, monitoring systems and Kubernetes probes. It
listens on loopback unless another address is given. It needs no login: it shows only when the last look ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from gpuops import clock
from gpuops.execute.state.http_listener import GetHandler, ListenOption, listening
from gpuops.model.time_text import format_stamp

STALE_S: Final = 900.0
"""A look at vCenter that ended longer ago is stale: three times the longest wait between two looks."""
_OPTION: Final = ListenOption("--health", 9464)


class Health:
    """When a service last looked."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._lock = Lock()
        self._latest_look: tuple[float, str, bool] | None = None

    def note_look(self, *, is_available: bool = True) -> None:
        """Note that a look ended now. `is_available`: whether it reached what the service needs."""
        with self._lock:
            self._latest_look = clock.passed_s(), format_stamp(clock.wall_clock()), is_available

    def answer(self, *, ready: bool = False) -> tuple[int, dict[str, str | None]]:
        """Return the HTTP status and the body. `ready`: whether the service can work, not only whether it runs."""
        with self._lock:
            at_s, at, is_available = self._latest_look or (float("-inf"), None, True)
        fresh = clock.passed_s() - at_s < self._stale_s
        status = "stale" if not fresh else "away" if ready and not is_available else "ok"
        return (200 if status == "ok" else 503), {"status": status, "looked_at": at}


def health_address(text: str) -> tuple[str, int]:
    """Return host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
    return _OPTION.address(text)


@contextmanager
def serve_health(address: tuple[str, int], stale_s: float = STALE_S) -> Iterator[Health]:
    """Serve GET /healthz and /readyz inside the block, by the yielded Health; call its `note_look` after each look.

    Raises UsageError for an address that this machine does not have, or a port in use.
    """
    health = Health(stale_s)

    class HealthRequest(GetHandler):
        def page(self, path: str) -> tuple[int, str, bytes]:
            if path in ("/healthz", "/readyz"):
                status, body = health.answer(ready=path == "/readyz")
            else:
                status, body = 404, {"status": "there are /healthz and /readyz alone"}
            return status, "application/json", json.dumps(body).encode()

    with listening(_OPTION, address, HealthRequest):
        yield health
