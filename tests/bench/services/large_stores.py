"""A journal of years and a store of measurements of a month: what opening, writing, reading and auditing them takes.

Each is written here and measured by a child, whose memory holds nothing of what wrote it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np

from gpuops.api import history
from gpuops.clock import wall_clock
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.journal.audit import verify
from gpuops.execute.journal.stores import open_store
from gpuops.extras.observe.rolling_up import FINE_S, SAMPLE_S, steps_of_samples
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import VM_COUNTERS, Samples
from gpuops.plan.core.steps import SuspendVm
from tests.bench.changes.journal import Nightly, _inventory, _night
from tests.bench.measure import peak_memory_mib, python
from tests.bench.services.measurements import DAY_S, MIDNIGHT, VCENTER, _size_mb, _VmOfTheFleet
from tests.bench.verdict import Figure, Result

KINDS: Final = 50
"""VMs that differ; all others of the store are like one of them."""
EFFECTS: Final = 100
_HALF_DAY_S: Final = DAY_S // 2


def large_journal(records: int) -> Result:
    """A journal with so many records, written night by night."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        began_s = perf_counter()
        _write_journal(Path(folder), records)
        written_s = perf_counter() - began_s
        usage = python("journal", "-m", "tests.bench.services.large_stores", "journal", folder).run()
    told = usage.said
    return Result(
        f"the journal with {told['records']:,} records, written in {written_s:.0f} s",
        (
            Figure("opening it", told["open_s"], "s", 0.5),
            Figure("an intent, median", told["intent_ms"], "ms", 20.0),
            Figure("history", told["history_s"], "s", 120.0),
            Figure("auditing every record", told["audit_s"], "s", 180.0),
            Figure("CPU of all of it", usage.cpu_s, "CPU s", 300.0),
            Figure("memory, the program's included", usage.peak_mib, "MiB", 500.0),
        ),
    )


def large_store(days: int, vms: int) -> Result:
    """So many days of so many VMs."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        began_s = perf_counter()
        _write_measurements(Path(folder), days, vms)
        written_s, file_mb = perf_counter() - began_s, _size_mb(Path(folder))
        usage = python(
            "measurements", "-m", "tests.bench.services.large_stores", "measurements", folder, str(days), str(vms)
        ).run()  # fmt: skip
    told = usage.said
    return Result(
        f"measurements of {days} days of {vms:,} VMs, written in {written_s:.0f} s",
        (
            Figure("the file", file_mb, "MB", 600.0),
            Figure("a day of one VM", 1000 * told["day_s"], "ms", 50.0),
            Figure("the newest use of all VMs", told["newest_s"], "s", 10.0),
            Figure("all days of one counter of all VMs", told["all_s"], "s", 60.0),
            Figure("CPU of all of it", usage.cpu_s, "CPU s", 80.0),
            Figure("memory, the program's included", usage.peak_mib, "MiB", 500.0),
        ),
    )


def _write_journal(folder: Path, records: int) -> None:
    store = Nightly(open_store(folder, "", VCENTER))
    moment = datetime(2026, 1, 1, 20, tzinfo=UTC)
    ticks = iter(range(10**9))
    journal = Journal(store, VCENTER, lambda: moment + timedelta(seconds=next(ticks)))
    with closing(journal):
        for day in count():
            if journal.state.seq >= records:
                break
            moment, ticks = datetime(2026, 1, 1, 20, tzinfo=UTC) + timedelta(hours=2 * day), iter(range(10**9))
            _night(journal, moment)
            store.commit()


def _write_measurements(folder: Path, days: int, vms: int) -> None:
    """Half a day at a time: what a look of twenty minutes costs is measured elsewhere (`measurements`)."""
    kinds = [_VmOfTheFleet(number) for number in range(min(KINDS, vms))]
    with Measurements.open(folder, "", VCENTER) as store:
        for half in range(2 * days):
            begin = MIDNIGHT + half * _HALF_DAY_S
            ends = begin + np.arange(1, _HALF_DAY_S // SAMPLE_S + 1, dtype=np.int64) * SAMPLE_S
            samples = [Samples(str(number), ends, dict(kind._series(ends))) for number, kind in enumerate(kinds)]
            steps = [steps_of_samples(each, begin, _HALF_DAY_S // FINE_S) for each in samples]
            store.write(begin, {f"vm-{number}": steps[number % len(steps)] for number in range(vms)})
            store.note_observed(begin, begin + _HALF_DAY_S)


def _read_journal(folder: Path) -> dict[str, float]:
    began_s = perf_counter()
    journal = Journal.open(folder, VCENTER, wall_clock)
    with closing(journal):
        records = journal.state.seq
        open_s = perf_counter() - began_s
        run, inventory, took_ms = journal.begin("rotate night", night="n"), _inventory(wall_clock()), []
        for _ in range(EFFECTS):
            began_s = perf_counter()
            op_id = journal.intend(run, SuspendVm("vm-1"), inventory)
            took_ms.append((perf_counter() - began_s) * 1000)
            journal.record_outcome(op_id, IntentState.DONE, "", 30.0)
        journal.end(run)
    began_s = perf_counter()
    assert history(folder, limit=30).nights
    history_s, began_s = perf_counter() - began_s, perf_counter()
    assert verify(folder, "").whole
    audit_s = perf_counter() - began_s
    return {
        "records": records, "open_s": open_s, "intent_ms": median(took_ms), "history_s": history_s, "audit_s": audit_s,
    }  # fmt: skip


def _read_measurements(folder: Path, days: int, vms: int) -> dict[str, float]:
    names = [f"vm-{number}" for number in range(vms)]
    begin, until = (datetime.fromtimestamp(MIDNIGHT + day * DAY_S, UTC) for day in (0, days))
    found = MeasurementReads.open_if_exists(folder, "", VCENTER)
    assert found is not None
    with found as store:
        began_s = perf_counter()
        assert store.window(names[-1], VM_COUNTERS, until - timedelta(days=1), until)
        day_s, began_s = perf_counter() - began_s, perf_counter()
        assert len(store.newest(names, VM_COUNTERS, until - timedelta(hours=1), until)) == vms
        newest_s, began_s = perf_counter() - began_s, perf_counter()
        steps = days * DAY_S // FINE_S
        assert sum(1 for _ in store.arrays(set(names), VM_COUNTERS[:1], int(begin.timestamp()), steps)) == vms
        all_s = perf_counter() - began_s
    return {"day_s": day_s, "newest_s": newest_s, "all_s": all_s}


def _measured(what: str, folder: Path, numbers: list[int]) -> dict[str, float]:
    told = _read_journal(folder) if what == "journal" else _read_measurements(folder, *numbers)
    return told | {"peak_rss_mib": peak_memory_mib()}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], Path(sys.argv[2]), list(map(int, sys.argv[3:])))))
