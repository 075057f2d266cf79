"""A gpuops with other Python names for a step and its fields reads an open night, and this gpuops reads its."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.runs import NightVms
from gpuops.model.nights.night_record import Original, Role
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from tests.execute.small_vcenter import small_world
from tests.renamed import renamed_copy, running

NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
MORNING: Final = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.runs import NightVms
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PauseVm

now = datetime(2026, 11, 21, 5, tzinfo=UTC)
journal = Journal.open(Path(sys.argv[1]), "vc-1", lambda: now)
[run] = journal.open_runs(["rotate night"])
print([(intent.op_id, intent.step, intent.state.value) for intent in journal.open_intents(run)])
print([(original.name, original.taken) for original in NightVms(journal).all()])
print(journal.setbacks())
op_id = journal.intend(run, PauseVm("vm-2", yields_room=True), Inventory("vc-1", "8.0", now))
journal.record_outcome(op_id, IntentState.DONE)
journal.end(run)
journal.close()
"""


@pytest.mark.long
def test_a_gpuops_with_renamed_steps_reads_an_open_night_and_writes_what_this_one_reads(tmp_path: Path) -> None:
    renamed, state_dir = renamed_copy(tmp_path / "renamed"), tmp_path / "state"
    journal = Journal.open(state_dir, "vc-1", lambda: NOW)
    run = journal.begin("rotate night", night="2026-11-20", policy="text", steps=2)
    NightVms(journal).save(
        [Original("2026-11-20", Role.DESKTOP, "vm-1", "uuid-1", "desk-1", "host-1", ("grid_a100-4c",))], run
    )
    suspended = journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    journal.record_outcome(journal.intend(run, PowerOnVm("vm-3"), small_world().snapshot()), IntentState.DONE)

    command = [sys.executable, "-c", MORNING, str(state_dir)]
    morning = subprocess.run(command, env=running(renamed), capture_output=True, text=True, check=False)

    assert morning.stderr == ""
    assert morning.stdout.splitlines() == [
        f"[('{suspended}', PauseVm(vm='vm-1', yields_room=False), 'intent')]",
        "[('desk-1', True)]",
        "{'2026-11-20': NightCounts(foreseen=2, ended=1, failed=0, on_host={}, refused=0)}",
    ]
    assert journal.open_runs(["rotate night"]) == ()
    steps = [record.body["step"] for record in journal.records() if "step" in record.body]
    assert steps[-1] == {"SuspendVm": {"vm": "vm-2", "gives_way": True}}
    journal.close()
