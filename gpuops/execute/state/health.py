"""Answers whether a service goes on, over HTTP: GET /healthz is 200 while it looked at vCenter of late, 503 otherwise.

For a load balancer or a monitoring system; on loopback unless another address is said. It tells nothing but when the
last look ended, so it needs no login.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from gpuops import clock
from gpuops.execute.state.http_listener import GetHandler, ListenOption, listening

STALE_S: Final = 900.0
"""A look that ended so long ago is none any more: three times the longest wait between two looks."""
_OPTION: Final = ListenOption("--health", 9464)


class Health:
    """When something was last looked at."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._looked: tuple[float, str] | None = None

    def looked(self) -> None:
        """A look has ended just now."""
        with self._lock:
            self._looked = clock.passed_s(), f"{clock.wall_clock():%Y-%m-%dT%H:%M:%SZ}"

    def told(self) -> tuple[int, dict[str, str | None]]:
        """The HTTP status, and what is said."""
        with self._lock:
            looked = self._looked
        fresh = looked is not None and clock.passed_s() - looked[0] < STALE_S
        return (200 if fresh else 503), {
            "status": "ok" if fresh else "stale",
            "looked_at": looked[1] if looked is not None else None,
        }


def health_address(text: str) -> tuple[str, int]:
    """Host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
    return _OPTION.address(text)


@contextmanager
def served(address: tuple[str, int]) -> Iterator[Callable[[], None]]:
    """While this is open, GET /healthz is answered there; what it gives is called when a look has ended.

    Raises UsageError for an address that is none of this machine, or a port that is taken.
    """
    health = Health()

    class HealthRequest(GetHandler):
        def page(self, path: str) -> tuple[int, str, bytes]:
            status, said = health.told() if path == "/healthz" else (404, {"status": "there is /healthz alone"})
            return status, "application/json", json.dumps(said).encode()

    with listening(_OPTION, address, HealthRequest):
        yield health.looked
