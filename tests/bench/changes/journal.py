"""The journal: what one effect costs on disk, and what opening it costs after seven years of nights.

The years are written by the journal itself, night by night, but a night in one commit: what is measured is the reading.
The budgets: an intent may cost a millisecond beside what the disk takes to make it durable, of the five that a step of
the executor has; and a run that begins after seven years reads as little as one that begins after a week.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from unittest.mock import patch

from gpuops.clock import wall_clock
from gpuops.execute.journal import FILE_NAME, IntentState, Journal, Run, database
from gpuops.execute.journal.journal import CHECKPOINT_EVERY
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.store import MemoryStore, Store
from gpuops.execute.journal.stores import open_store
from gpuops.execute.runs.nights import NightVms
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from tests.bench.measure import Contender, interleave, python
from tests.bench.verdict import Figure, Result

YEARS = 7
DESKTOPS, ML = 20, 4
EFFECTS = 400
ROUNDS = 5
OWN_MS, OPEN_S, OPEN_MIB = 1.0, 0.25, 20.0

_MAKE_DURABLE = database._make_durable

_OPEN = """
import json, resource, sys, time
from datetime import UTC, datetime
from pathlib import Path
from gpuops.execute.journal import Journal
now = lambda: datetime(2033, 1, 1, tzinfo=UTC)
Journal.open(Path(sys.argv[1]) / "small", "vc", now).state
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
state = Journal.open(Path(sys.argv[1]) / sys.argv[2], "vc", now).state
took = time.perf_counter() - began
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps({"open_s": took, "grown_mib": grown, "records": state.seq, "owed": len(state.originals)}))
"""

_VERIFY = """
import json, resource, sys, time
from pathlib import Path
from gpuops.execute.journal.audit import verify
began = time.perf_counter()
found = verify(Path(sys.argv[1]) / sys.argv[2], "")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"verify_s": time.perf_counter() - began, "peak_mib": peak, "whole": found.whole}))
"""


class Nightly:
    """A store that hands a whole night on in one commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._night: list[Record] = []

    def read(self, after: int | None) -> Sequence[Record]:
        return self._store.read(after)

    def append(self, records: Sequence[Record]) -> None:
        self._night.extend(records)

    def close(self) -> None:
        self._store.close()

    def commit(self) -> None:
        self._store.append(self._night)
        self._night.clear()


def run() -> Result:
    """Milliseconds of an effect, and seconds and MiB of a beginning."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        base = Path(folder)
        sqlite_ms = _effects_ms(open_store(base / "effects", "", "vc"))
        with patch.object(database, "_make_durable", _not_durable):
            own_ms = _effects_ms(open_store(base / "own", "", "vc"))
        bare_ms = median(_bare_ms(base / "bare.sqlite"))
        memory_ms = _effects_ms(MemoryStore())
        _years(base / "small", 1 / 52)
        began = time.perf_counter()
        _years(base / "years", YEARS)
        written_s = time.perf_counter() - began
        size_mib = (base / "years" / FILE_NAME).stat().st_size / 2**20
        week, years = (_child(name, _OPEN, base, which) for name, which in (("a week", "small"), ("years", "years")))
        audit = _child("audit", _VERIFY, base, "years")
        rounds = interleave([week, years], ROUNDS)
        audited = interleave([audit], 1)[audit.name][0].said
    opened = {name: [usage.said for usage in usages] for name, usages in rounds.items()}
    best = {name: min(float(said["open_s"]) for said in told) for name, told in opened.items()}
    grown = max(float(said["grown_mib"]) for said in opened[years.name])
    records = int(opened[years.name][0]["records"])
    print(f"{records:,} records of {YEARS} years written in {written_s:.0f} s, {size_mib:.0f} MiB", file=sys.stderr)
    assert audited["whole"], "what was written is whole"
    return Result(
        f"the journal, after {YEARS} years of nights with {DESKTOPS} desktops",
        (
            Figure("an intent on SQLite, median", median(sqlite_ms), "ms"),
            Figure("an intent on SQLite, 95th percentile", quantiles(sqlite_ms, n=20)[-1], "ms"),
            Figure("a bare commit of as many bytes there, median", bare_ms, "ms"),
            Figure("an intent without the disk's part, median", median(own_ms), "ms", OWN_MS),
            Figure("an intent in memory, median", median(memory_ms), "ms"),
            Figure("the file", size_mib, "MiB"),
            Figure(f"opening it with {records:,} records", best[years.name], "s", OPEN_S),
            Figure("opening one of a week", best[week.name], "s"),
            Figure("memory that opening it takes", grown, "MiB", OPEN_MIB),
            Figure("auditing every record", float(audited["verify_s"]), "s"),
            Figure("memory of an audit, the program's included", float(audited["peak_mib"]), "MiB"),
        ),
        rounds,
    )


def _child(name: str, code: str, base: Path, which: str) -> Contender:
    return python(name, "-c", code, str(base), which)


def _effects_ms(store: Store) -> list[float]:
    """How long each intent took until it was durable."""
    journal = Journal(store, "vc", wall_clock)
    found = []
    with closing(journal):
        began = journal.begin("rotate night", night="n")
        inventory = _inventory(datetime(2026, 1, 1, tzinfo=UTC))
        for _ in range(EFFECTS):
            start = time.perf_counter()
            op_id = journal.intend(began, SuspendVm("vm-1"), inventory)
            found.append((time.perf_counter() - start) * 1000)
            journal.record_outcome(op_id, IntentState.DONE, "", 30.0)
    return found


def _bare_ms(path: Path) -> list[float]:
    """What the disk asks of anybody: SQLite alone, as durable."""
    found = []
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            opened.execute(f"PRAGMA {pragma}")
        opened.execute("CREATE TABLE bare (text)")
        for _ in range(EFFECTS):
            start = time.perf_counter()
            opened.execute("INSERT INTO bare VALUES (?)", ("x" * 500,))
            found.append((time.perf_counter() - start) * 1000)
    return found


def _not_durable(connection: sqlite3.Connection, record: object) -> None:
    _MAKE_DURABLE(connection, record)
    connection.execute("PRAGMA synchronous=OFF")


def _years(state_dir: Path, years: float) -> None:
    store = Nightly(open_store(state_dir, "", "vc"))
    moment = datetime(2026, 1, 1, 20, tzinfo=UTC)
    ticks = iter(range(10**9))
    journal = Journal(store, "vc", lambda: moment + timedelta(seconds=next(ticks)))
    with closing(journal):
        for day in count():
            since = journal.state.seq - journal.state.checkpoint
            if day >= years * 365 and (years < 1 or since > CHECKPOINT_EVERY * 3 / 4):
                break  # the years end where most is read: long after a checkpoint
            moment, ticks = datetime(2026, 1, 1, 20, tzinfo=UTC) + timedelta(days=day), iter(range(10**9))
            _night(journal, moment)
            store.commit()


def _night(journal: Journal, moment: datetime) -> None:
    night = f"{moment:%Y-%m-%dT%H:%MZ}"
    desktops, machines = [f"vm-{n}" for n in range(DESKTOPS)], [f"vm-9{n}" for n in range(ML)]
    saved = [
        Original(night, role, vm, f"5000-{vm}", f"name of {vm}", f"host-{index % 4}", ("nvidia_a40-8q",))
        for role, vms in ((Role.DESKTOP, desktops), (Role.ML, machines))
        for index, vm in enumerate(vms)
    ]
    inventory = _inventory(moment)
    evening = journal.begin("rotate night", night=night, policy="a policy of some lines\n" * 60)
    NightVms(journal).save(saved)
    _do(journal, evening, inventory, _evening(desktops, machines, night))
    journal.end(evening)
    morning = journal.begin("rotate day", policy="a policy of some lines\n" * 60)
    _do(journal, morning, inventory, _morning(desktops, machines))
    for each in saved:
        NightVms(journal).record_return(each)
    journal.end(morning)


def _do(journal: Journal, run: Run, inventory: Inventory, steps: Iterator[Step]) -> None:
    for number, step in enumerate(steps):
        op_id = journal.intend(run, step, inventory)
        if not isinstance(step, SetAttribute | ShutDownGuest):
            journal.record_task(op_id, f"task-{number}")
        journal.record_outcome(op_id, IntentState.DONE, "", 12.5 + number)


def _evening(desktops: list[str], machines: list[str], night: str) -> Iterator[Step]:
    yield from (SetAttribute(vm, "gpuops.rotation", f"{night} desktop") for vm in [*desktops, *machines])
    yield from (SuspendVm(vm) for vm in desktops)
    yield from (PowerOnVm(vm, "host-1") for vm in machines)


def _morning(desktops: list[str], machines: list[str]) -> Iterator[Step]:
    yield from (ShutDownGuest(vm, grace_s=300, then_off=True) for vm in machines)
    yield from (ResumeVm(vm, "host-1") for vm in desktops)
    yield from (SetAttribute(vm, "gpuops.rotation", "") for vm in [*desktops, *machines])


def _inventory(moment: datetime) -> Inventory:
    return Inventory("vc", "8.0.3.0", moment, {}, {}, {}, {})
