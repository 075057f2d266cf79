"""Answers whether a service goes on, over HTTP: GET /healthz is 200 while it looked of late, 503 otherwise.

GET /readyz is 503 also while that look found away what the service needs, the PostgreSQL of a runner: to start the
service anew would help nothing then. For a load balancer, a monitoring system, or probes of Kubernetes; on loopback
unless another address is said. It tells nothing but when the last look ended, so it needs no login.
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
"""A look at vCenter that ended so long ago is none any more: three times the longest wait between two looks."""
_OPTION: Final = ListenOption("--health", 9464)


class Health:
    """When something was last looked at."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._lock = Lock()
        self._looked: tuple[float, str, bool] | None = None

    def looked(self, *, found: bool = True) -> None:
        """A look has ended just now; whether it found what the service needs."""
        with self._lock:
            self._looked = clock.passed_s(), format_stamp(clock.wall_clock()), found

    def told(self, *, ready: bool = False) -> tuple[int, dict[str, str | None]]:
        """The HTTP status, and what is said. `ready`: asked is whether it can do its work, not only whether it goes
        on."""
        with self._lock:
            at_s, at, found = self._looked or (float("-inf"), None, True)
        fresh = clock.passed_s() - at_s < self._stale_s
        status = "stale" if not fresh else "away" if ready and not found else "ok"
        return (200 if status == "ok" else 503), {"status": status, "looked_at": at}


def health_address(text: str) -> tuple[str, int]:
    """Host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
    return _OPTION.address(text)


@contextmanager
def served(address: tuple[str, int], stale_s: float = STALE_S) -> Iterator[Health]:
    """While this is open, GET /healthz and /readyz are answered there by what it gives, which is told of each look.

    Raises UsageError for an address that is none of this machine, or a port that is taken.
    """
    health = Health(stale_s)

    class HealthRequest(GetHandler):
        def page(self, path: str) -> tuple[int, str, bytes]:
            if path in ("/healthz", "/readyz"):
                status, said = health.told(ready=path == "/readyz")
            else:
                status, said = 404, {"status": "there are /healthz and /readyz alone"}
            return status, "application/json", json.dumps(said).encode()

    with listening(_OPTION, address, HealthRequest):
        yield health
