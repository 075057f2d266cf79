"""A process of its own that works on a simulated vCenter and ends itself by SIGKILL at the point it was told.

python -m tests.nights.victim PORT CA_FILE STATE_DIR WHAT [POINT]      the password comes by stdin

WHAT is night, day or resume. It prints how many points it passed: before and after each append to the journal and
each change sent. POINT 0, or more than there are: it lives.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.rotation import Half, resume, rotate
from gpuops.execute.site import Site, agreed
from gpuops.model.target import Target
from gpuops.sim.server import USERNAME
from gpuops.vsphere.connection import Connection
from tests.nights.wire import Watched

POLICY = resources.files("gpuops.sim").joinpath("scenarios", "lab-policy.yaml").read_text(encoding="utf-8")


class Points:
    """Counts, and kills at one of them."""

    def __init__(self, last: int) -> None:
        self.passed = 0
        self._last = last

    def __call__(self, what: str) -> None:
        self.passed += 1
        if self.passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    port, ca_file, state_dir, what, *point = arguments
    points = Points(int(point[0]) if point else 0)
    append = SqlStore.append

    def appending(store: SqlStore, records: Sequence[Record]) -> None:
        points("before an append")
        append(store, records)
        points("after an append")

    SqlStore.append = appending  # type: ignore[assignment,method-assign]
    target = Target("127.0.0.1", USERNAME, sys.stdin.readline().strip(), port=int(port), ca_files=(ca_file,))
    with Connection(target) as connection:
        site = Site(Watched(connection, points), Path(state_dir), lambda: datetime.now(UTC))  # noqa: TID251
        if what == "resume":
            report = resume(site, apply=True, consent=agreed)
        else:
            report = rotate(Half(f"rotate {what}"), parse_policy(POLICY, "lab"), site, apply=True, consent=agreed)
    print(points.passed)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
