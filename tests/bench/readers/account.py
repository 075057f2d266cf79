"""What a reading process counts about itself: requests sent, objects read, peak memory."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Account:
    """Counts HTTP requests from `begin()` on, by the audit event that http.client raises for every send."""

    requests: int = 0
    objects: int = 0
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        # One request may be several sends (head, then body); only the head starts with the method.
        if event == "http.client.send" and bytes(arguments[1][:5]) in (b"POST ", b"GET /"):  # type: ignore[index]
            self.requests += 1

    def begin(self) -> None:
        """The work starts here: imports and the login are over."""
        self.requests = 0
        self._began_s = time.process_time()

    def print(self) -> None:
        """Print the account as the one JSON line that the measuring process reads."""
        report = {
            "read_cpu_s": round(time.process_time() - self._began_s, 4),
            "requests": self.requests,
            "objects": self.objects,
            "peak_rss_mib": round(_peak_rss_mib(), 1),
        }
        print(json.dumps(report))


def _peak_rss_mib() -> float:
    # VmHWM and not getrusage: the latter never falls below the size of the process this one was forked from.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
