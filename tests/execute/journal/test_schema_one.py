"""A journal that the gpuops before this one wrote: its open night is gone on with, and brought back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.half import HALVES, Half
from gpuops.execute.journal import FILE_NAME, IntentState, Journal
from gpuops.execute.journal.record import Kind
from gpuops.execute.originals import Originals
from gpuops.execute.rotation import rotate
from gpuops.execute.site import Site, agreed
from gpuops.execute.status import status
from gpuops.model.vm import PowerState
from gpuops.plan.core.steps import PowerOnVm
from tests.execute.journals import records
from tests.execute.nights import POLICY, Night
from tests.execute.small_vcenter import Killed, SmallVcenter

DUMP = Path(__file__).with_name("data") / "journal-schema-1.sql"
"""A night and a morning, and a night that was killed when the second desktop had just been suspended: written by the
last gpuops of schema 1, in the world of `killed_night`."""


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """The world of that night, and beside it that journal."""
    night = Night(tmp_path / "state")
    night.run(Half.NIGHT)
    night.run(Half.DAY)
    night.world.now += timedelta(hours=23)
    effects: list[str] = []

    def kill_at_the_second_effect(point: str) -> None:
        effects.extend([point] if point.startswith("after the effect of") else [])
        if len(effects) == 2:
            raise Killed(point)

    with pytest.raises(Killed):
        rotate(Half.NIGHT, POLICY, Site(SmallVcenter(night.world, kill_at_the_second_effect), night.state_dir,
               night.world.tick), apply=True, consent=agreed)  # fmt: skip
    for task in night.world.tasks.values():
        # that gpuops did not start a VM on one host before the desktops of all others were suspended
        task.ended = task.ended or isinstance(task.step, PowerOnVm)
    night.world.ledger.clear()  # its op ids are those of another journal
    old_journal(night.state_dir)
    return night


def old_journal(state_dir: Path, dump: str = "") -> None:
    state_dir.mkdir(mode=0o700, exist_ok=True)
    for path in state_dir.glob(f"{FILE_NAME}*"):
        path.unlink()
    with closing(sqlite3.connect(state_dir / FILE_NAME)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(dump or DUMP.read_text(encoding="utf-8"))
    (state_dir / FILE_NAME).chmod(0o600)


def test_its_night_is_gone_on_with_and_comes_back(night: Night) -> None:
    assert night.resume().exit_code == 0
    assert night.powers()["ml-01"] is PowerState.ON
    assert night.run(Half.DAY).exit_code == 0
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.markers() == set()
    assert night.open_runs() == 0


def test_its_morning_needs_no_marker_and_no_policy_file(night: Night) -> None:
    for ref in night.world.vms:
        night.world.set(ref, attributes={})
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert rotate(Half.DAY, None, site, apply=True, consent=agreed).exit_code == 0
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}


def test_looking_at_it_changes_nothing(night: Night) -> None:
    """A process of the old version may be writing it just now."""
    before = (night.state_dir / FILE_NAME).read_bytes()
    seen = status(Site(SmallVcenter(night.world), night.state_dir, night.world.tick))
    assert (seen.cut_off, seen.remembered) == (Half.NIGHT, True)
    assert {mine.original.name for mine in seen.away} == {"desktop-01", "desktop-02"}
    night.resume(apply=False)
    assert (night.state_dir / FILE_NAME).read_bytes() == before


def test_all_that_it_knew_is_known(tmp_path: Path) -> None:
    old_journal(tmp_path / "state")
    journal = Journal.open(tmp_path / "state", "vc-uuid", Night(tmp_path).world.tick)
    [cut_off] = journal.open_runs(HALVES)
    assert (cut_off.id, cut_off.night) == ("f94b13845bf6", "2026-11-21")
    assert "name: small\npools:" in cut_off.policy
    found = [(intent.op_id, intent.step.vm, intent.state, intent.task) for intent in journal.open_intents(cut_off)]
    assert found == [
        ("gpuops-f94b13845bf6-5", "vm-1", IntentState.SUBMITTED, "task-7"),
        ("gpuops-f94b13845bf6-6", "vm-2", IntentState.SUBMITTED, "task-8"),
    ]
    assert journal.last_policy(Half.NIGHT) == cut_off.policy
    owed = {(each.vm, each.taken, each.host) for each in Originals(journal).all()}
    assert owed == {("vm-1", True, "host-1"), ("vm-2", True, "host-1"), ("vm-91", False, "host-1"),
                    ("vm-92", False, "host-2")}  # fmt: skip
    assert len(Originals(journal).all("2026-11-20")) == 8, "what that night took and gave back"
    journal.close()
    first = records(tmp_path / "state", "vc-uuid")[0]
    assert (first.kind, first.body["schema"]) == (Kind.IMPORTED, 1)


def test_a_process_of_the_old_version_finds_its_tables_gone(tmp_path: Path) -> None:
    """It stops before it sends anything more, instead of writing where nobody reads."""
    old_journal(tmp_path / "state")
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as old:
        old.execute("PRAGMA journal_mode=WAL")
        Journal.open(tmp_path / "state", "vc-uuid", Night(tmp_path).world.tick).close()
        with pytest.raises(sqlite3.OperationalError, match="no such table: intents"):
            old.execute("UPDATE intents SET state = 'done'")


def test_an_intent_never_comes_before_its_run(tmp_path: Path) -> None:
    """The clock was set back in the middle of that night."""
    old_journal(tmp_path / "state", DUMP.read_text(encoding="utf-8").replace("2026-11-21T20:03", "2026-11-21T20:59"))
    journal = Journal.open(tmp_path / "state", "vc-uuid", Night(tmp_path).world.tick)
    [cut_off] = journal.open_runs(HALVES)
    assert len(journal.open_intents(cut_off)) == 2
    journal.close()


def test_a_row_that_cannot_be_read_is_damage_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    dump = DUMP.read_text(encoding="utf-8").replace("'[\"nvidia_a40-48c\"]','2026", "'[oops','2026")
    old_journal(tmp_path / "state", dump)
    with pytest.raises(StateDamaged, match="a row of schema 1 that cannot be read"):
        Journal.open(tmp_path / "state", "vc-uuid", Night(tmp_path).world.tick)
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as database:
        assert database.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        assert database.execute("SELECT count(*) FROM intents").fetchone() == (22,)
