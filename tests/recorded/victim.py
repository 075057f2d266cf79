"""A `gpuops` process that ends itself by SIGKILL before or after a certain record of its journal is written.

The moment is `after:submitted:SuspendVm:2`; the kind of step is empty for records that have none: `after:begun::1`.
Processes are forked from one that has imported all this, for their imports take longer than a night.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import psycopg  # noqa: F401  for what is forked: these are imported late
import pyVmomi  # noqa: F401
import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite  # noqa: F401

from gpuops.cli.app import main
from gpuops.clock import set_ahead
from gpuops.execute.journal import journal
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import SqlStore
from gpuops.extras.jobs import job_queue

FORKED: Final = get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
LIMIT_S: Final = 120
MACHINE: Final = "jump-1"
USER: Final = "gpuops"
NEVER: Final = "-"
OFTEN: Final = 20
"""So many records between two checkpoints, for a journal that is to have one."""


class Killer:
    """Counts the records that fit the moment."""

    def __init__(self, moment: str) -> None:
        self._when, self._kind, self._step, number = moment.split(":")
        self._number = int(number)
        self._steps: dict[str, str] = {}

    def before(self, records: Sequence[Record]) -> None:
        self._count("before", records)

    def after(self, records: Sequence[Record]) -> None:
        self._count("after", records)

    def _count(self, when: str, records: Sequence[Record]) -> None:
        for record in records:
            op_id = record.body.get("op", "")
            if "step" in record.body:
                self._steps[op_id] = next(iter(record.body["step"]))
            fits = record.kind == self._kind and self._step in ("", self._steps.get(op_id, ""))
            if when == self._when and fits:
                self._number -= 1
                if self._number == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment: str) -> None:
    """From now on this process dies at that moment."""
    killer, append = Killer(moment), SqlStore.append

    def appending(store: SqlStore, records: Sequence[Record]) -> None:
        killer.before(records)
        append(store, records)
        killer.after(records)

    SqlStore.append = appending  # type: ignore[assignment,method-assign]


def run(words: Sequence[str], kill: str, env: Mapping[str, str], output: Path, *, checkpoints: bool) -> int | None:
    """The exit code of a process that runs `gpuops WORDS`; -9 = it was killed. What it printed is in `output`."""
    process = FORKED.Process(target=_work, args=(list(words), kill, dict(env), output, checkpoints))
    process.start()
    process.join(LIMIT_S)
    return process.exitcode


def _work(words: list[str], kill: str, env: dict[str, str], output: Path, checkpoints: bool) -> None:
    with output.open("wb") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ |= env
    set_ahead(timedelta(seconds=float(env["SURROUNDINGS_AHEAD_S"])))
    socket.gethostname = lambda: MACHINE
    journal.os_user = job_queue.os_user = lambda: USER  # type: ignore[attr-defined]
    if checkpoints:
        journal.CHECKPOINT_EVERY = OFTEN  # type: ignore[misc]
    if kill != NEVER:
        kill_at(kill)
    sys.argv[1:] = words
    main()
