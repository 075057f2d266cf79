"""A gpuops in which a step and its fields have other names in Python reads an open night, and is read in its turn."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

import gpuops
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.runs.nights import NightVms
from gpuops.model.nights.night_record import Original, Role
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from tests.execute.small_vcenter import small_world

RENAMED: Final = {
    "SuspendVm": "PauseVm",
    "gives_way": "yields_room",
    "StepCounts": "NightCounts",
    "planned": "foreseen",
}
"""Names in Python, and what they are called in the copy."""
NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
MORNING: Final = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.runs.nights import NightVms
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PauseVm

now = datetime(2026, 11, 21, 5, tzinfo=UTC)
journal = Journal.open(Path(sys.argv[1]), "vc-1", lambda: now)
[run] = journal.open_runs(["rotate night"])
print([(intent.op_id, intent.step, intent.state.value) for intent in journal.open_intents(run)])
print([(original.name, original.taken) for original in NightVms(journal).all()])
print(journal.setbacks())
op_id = journal.intend(run, PauseVm("vm-2", yields_room=True), Inventory("vc-1", "8.0", now))
journal.settled(op_id, IntentState.DONE)
journal.end(run)
journal.close()
"""


def with_other_names(source: str, names: Mapping[str, str]) -> str:
    """The source with its identifiers renamed, as an editor does it: strings and comments stay."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return tokenize.untokenize(
        (kind, names.get(text, text) if kind == tokenize.NAME else text) for kind, text, *_ in tokens
    )


@pytest.fixture
def renamed_package(tmp_path: Path) -> Path:
    """A folder with a copy of gpuops in which these names are others."""
    package, folder = Path(gpuops.__file__).parent, tmp_path / "renamed"
    shutil.copytree(package, folder / "gpuops", copy_function=os.symlink)
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "ansible_collections" not in path.parts and any(name in source for name in RENAMED):
            copy = folder / "gpuops" / path.relative_to(package)
            copy.unlink()
            copy.write_text(with_other_names(source, RENAMED), encoding="utf-8")
    return folder


def test_a_gpuops_with_renamed_steps_reads_an_open_night_and_writes_what_this_one_reads(
    renamed_package: Path, tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    journal = Journal.open(state_dir, "vc-1", lambda: NOW)
    run = journal.begin("rotate night", night="2026-11-20", policy="text", steps=2)
    NightVms(journal).save(
        [Original("2026-11-20", Role.DESKTOP, "vm-1", "uuid-1", "desk-1", "host-1", ("grid_a100-4c",))], run
    )
    suspended = journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    journal.settled(journal.intend(run, PowerOnVm("vm-3"), small_world().snapshot()), IntentState.DONE)

    environment = {**os.environ, "PYTHONPATH": str(renamed_package), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", MORNING, str(state_dir)]
    morning = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

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
