"""A process of its own that works on a simulated vCenter and ends itself by SIGKILL at the point it was told.

Forked from a server that has imported all this (`multiprocessing`, forkserver): its imports take longer than a night.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyVmomi  # noqa: F401  for what is forked: the client imports it late
import sqlalchemy.dialects.sqlite  # noqa: F401

from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.connection import Connection
from tests.nights.playing.wire import Watched

FORKED: Final = get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
ONE_AT_A_TIME: Final = Lock()
"""Each start asks all processes for their exit codes, and a code can be asked for once: a second thread gets 255."""
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


def run(target: Target, state_dir: Path, what: str, point: int) -> tuple[int, int]:
    """(exit code, points passed) of a process that does `what`: night, day or resume; -9 for one that was killed.

    Points are before and after each append to the journal and each change sent. 0, or more than there are: it lives.
    """
    errors = state_dir.with_name(f"{state_dir.name}-{what}.errors")
    errors.parent.mkdir(exist_ok=True)
    receiving, sending = FORKED.Pipe(duplex=False)
    # a secret is not pickled: this test says its text
    reached = {field.name: getattr(target, field.name) for field in fields(target)}
    reached["password"] = target.password.reveal()
    process = FORKED.Process(target=_work, args=(sending, errors, reached, state_dir, what, point))
    with ONE_AT_A_TIME:
        process.start()
    sending.close()
    wait([process.sentinel], 110)
    with ONE_AT_A_TIME:
        code = process.exitcode
    if code is None:
        process.kill()
    with receiving:
        said = errors.read_text(encoding="utf-8")
        assert said == "" or code == -signal.SIGKILL, said
        assert code is not None, f"{what} does not end"
        return receiving.recv() if code == 0 else (code, 0)


def _work(told: Pipe, errors: Path, reached: dict[str, Any], state_dir: Path, what: str, point: int) -> None:
    with errors.open("ab") as stream:
        os.dup2(stream.fileno(), sys.stdout.fileno())
        os.dup2(stream.fileno(), sys.stderr.fileno())
    tempfile.tempdir = str(errors.parent)
    points = Points(point)
    append = SqlStore.append

    def appending(store: SqlStore, records: Sequence[Record]) -> None:
        points("before an append")
        append(store, records)
        points("after an append")

    SqlStore.append = appending  # type: ignore[assignment,method-assign]
    target = Target(**{**reached, "password": Secret(reached["password"])})
    with Connection(target) as connection:
        site = Site(Watched(connection, points), state_dir, wall_clock)
        if what == "resume":
            report = resume(site, apply=True, consent=agreed)
        else:
            report = rotate(RunKind(f"rotate {what}"), parse_policy(POLICY, "lab"), site, apply=True, consent=agreed)
    told.send((report.exit_code, points.passed))
