"""A journal that is damaged, missing, too new, or on a full disk: nothing is taken, and everything returns."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from pytest_mock import MockerFixture
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from gpuops.errors import Locked, StateDamaged
from gpuops.execute.journal import FILE_NAME, Journal, database
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.stores import open_store
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import ResumeVm, Step, SuspendVm
from tests.execute.nights import POLICY, Night
from tests.execute.small_vcenter import SmallVcenter, small_world
from tests.sample import mostly_long


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """A night that is over, with its two desktops away."""
    night = Night(tmp_path / "state")
    night.run(RunKind.NIGHT)
    return night


def path(night: Night) -> Path:
    return night.state_dir / FILE_NAME


def sql(statement: str) -> Callable[[Night], None]:
    def change(night: Night) -> None:
        with closing(sqlite3.connect(path(night))) as opened, opened:
            opened.execute(statement)

    return change


def flip(night: Night) -> None:
    """One bit of a record's text, in the file."""
    content = path(night).read_bytes()
    at = content.rindex(b'"SuspendVm"') + 2
    path(night).write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])


def truncate(night: Night) -> None:
    content = path(night).read_bytes()
    path(night).write_bytes(content[: len(content) // 2 // 4096 * 4096])


def overwrite(night: Night) -> None:
    path(night).write_bytes(b"not a database, but long enough to have a header" * 100)


def directory(night: Night) -> None:
    path(night).unlink()
    path(night).mkdir()


DAMAGES: dict[str, Callable[[Night], None]] = {
    "a flipped bit": flip,
    "half the file": truncate,
    "not a database": overwrite,
    "not a file": directory,
    "a dropped tail": sql("DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)"),
    "a torn middle": sql("DELETE FROM journal WHERE seq = 7"),
    "no head": sql("DELETE FROM journal_heads WHERE seq > 0"),
    "a lost table": sql("DROP TABLE journal"),
    "an older schema": sql("UPDATE schema_version SET version = 1"),
    "a newer schema": sql("UPDATE schema_version SET version = 3"),
    "no schema": sql("DELETE FROM schema_version WHERE version > 0"),
}


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_nothing_is_taken_and_the_morning_returns_all_by_the_markers(
    night: Night, damage: Callable[[Night], None]
) -> None:
    for companion in night.state_dir.glob(f"{FILE_NAME}-*"):
        companion.unlink()
    damage(night)
    before = list(night.world.ledger)
    damaged_bytes = path(night).read_bytes() if path(night).is_file() else b""
    for taking in (
        lambda: night.run(RunKind.NIGHT),
        lambda: night.resume(),
        lambda: night.run(RunKind.NIGHT, apply=False),
    ):
        with pytest.raises(StateDamaged) as refused:
            taking()
        assert "\n" not in refused.value.message
        assert refused.value.exit_code == 7
    rotation = status(Site(SmallVcenter(night.world), night.state_dir, night.world.tick), POLICY)
    assert (rotation.exit_code, len(rotation.away)) == (7, 4), "what the markers say"
    assert night.world.ledger == before
    foreseen = night.run(RunKind.DAY, apply=False)
    assert (foreseen.exit_code, night.world.ledger) == (7, before)
    report = night.run(RunKind.DAY)
    assert foreseen.plan.steps == report.plan.steps
    assert (report.exit_code, report.journal_lost) == (7, True)
    assert "went by vCenter's markers" in report.plan.warnings[-1]
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.markers() == set()
    if damaged_bytes:
        assert path(night).read_bytes() == damaged_bytes, "what is damaged is evidence, and left as it is"
    second_day = night.run(RunKind.DAY)
    assert (second_day.exit_code, second_day.plan.steps) == (7, ()), "until it is moved aside"
    shutil.move(path(night), night.state_dir / "aside")
    assert night.run(RunKind.DAY).exit_code == 0


@pytest.mark.long
def test_without_a_policy_the_markers_are_not_followed(night: Night) -> None:
    """Only a policy says which folders are ours, and a journal that lies must not."""
    overwrite(night)
    with pytest.raises(StateDamaged, match="file is not a database") as refused:
        rotate(RunKind.DAY, None, Site(SmallVcenter(night.world), night.state_dir, night.world.tick),
               apply=True, consent=agreed)  # fmt: skip
    assert "rotate day --policy FILE" in refused.value.hint


@pytest.mark.long
def test_without_any_journal_the_markers_are_enough(night: Night) -> None:
    shutil.rmtree(night.state_dir)
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.powers()["desktop-01"] is PowerState.ON


@pytest.mark.long
def test_an_entry_for_somebody_elses_vm_is_not_obeyed(night: Night) -> None:
    """A record with no place in the chain: the journal is not believed at all, and the VM has no marker."""
    night.world.set("vm-4", power=PowerState.SUSPENDED)
    body = '{"night":"2026-11-20","vm":"vm-4","role":"desktop","uuid":"50vm-4","name":"x","host":null,"profiles":[]}'
    sql("INSERT INTO journal SELECT vcenter, seq + 1, '', 'original', at, '" + body + "', checksum FROM journal "
        "ORDER BY seq DESC LIMIT 1")(night)  # fmt: skip
    sql("UPDATE journal_heads SET seq = seq + 1")(night)
    report = night.run(RunKind.DAY)
    assert report.exit_code == 7
    assert [step.vm for step in report.plan.steps if isinstance(step, ResumeVm)] == ["vm-1", "vm-2"]


def fail_from(mocker: MockerFixture, number: int, reason: str) -> None:
    """From that commit on, no commit succeeds."""
    real, commits = DefaultDialect.do_commit, count(1)

    def commit(dialect: DefaultDialect, connection: PoolProxiedConnection) -> None:
        if next(commits) >= number:
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError(reason))
        real(dialect, connection)

    mocker.patch.object(DefaultDialect, "do_commit", commit)


@pytest.mark.long
@pytest.mark.parametrize(
    "reason", mostly_long(["database or disk is full", "disk I/O error"], quick=["disk I/O error"])
)
def test_a_disk_that_fails_at_any_commit_stops_taking_and_never_returning(
    tmp_path: Path, mocker: MockerFixture, reason: str
) -> None:
    failed = outlived = 0
    for number in count(1):
        night = Night(tmp_path / f"night {number}")
        fail_from(mocker, number, reason)
        try:
            night.run(RunKind.NIGHT)
        except StateDamaged as damaged:
            assert reason in damaged.message
            failed += 1
        mocker.stopall()
        if night.world.ledger:
            night.check()
        fail_from(mocker, number, reason)
        report = night.run(RunKind.DAY)
        mocker.stopall()
        assert report.exit_code == (7 if report.journal_lost else 0)
        if report.journal_lost:
            assert reason in report.plan.warnings[-1]
            outlived += 1
        assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
        assert night.markers() == set()
        if failed < number:
            break
    assert failed > 20, "each commit of a night"
    assert outlived > 20


@pytest.mark.long
def test_a_full_disk_for_real(tmp_path: Path, mocker: MockerFixture) -> None:
    """SQLite's own error, where it needs one page more than there are."""
    night = Night(tmp_path / "state")
    Journal.open(night.state_dir, "vc-uuid", night.world.tick).close()
    with closing(sqlite3.connect(path(night))) as connection:
        connection.execute("VACUUM")  # the pages of tables that a revision has dropped are free otherwise
    most = path(night).stat().st_size // 4096 + 1
    real = database._make_durable

    def confined(connection: sqlite3.Connection, record: object) -> None:
        real(connection, record)
        connection.execute(f"PRAGMA max_page_count = {most}")

    mocker.patch.object(database, "_make_durable", confined)
    with pytest.raises(StateDamaged, match="database or disk is full"):
        night.run(RunKind.NIGHT)
    assert night.world.ledger != [], "in the middle of it"
    report = night.run(RunKind.DAY)
    assert (report.exit_code, report.journal_lost) == (7, True)
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.markers() == set()


@pytest.mark.long
def test_a_record_of_a_newer_gpuops_in_the_middle_of_a_morning_stops_no_return(night: Night) -> None:
    """On a shared database another machine may be upgraded while this one returns: it goes on by what it has read."""

    def written(step: Step) -> None:
        if isinstance(step, ResumeVm):
            night.world.on_submit = lambda step: None
            store = open_store(night.state_dir, "", "vc-uuid")
            last = store.read(None)[-1]
            store.append([Record(last.seq + 1, last.run, Kind.SETTLED, night.world.now, {"of": "tomorrow"})])
            store.close()

    night.world.on_submit = written
    report = night.run(RunKind.DAY)
    assert report.exit_code == 7
    assert "this version cannot read" in report.plan.warnings[-1]
    assert {power for name, power in night.powers().items() if "desktop" in name} == {PowerState.ON}
    assert night.markers() == set()


def test_whose_run_was_ended_by_another_sends_nothing_more(tmp_path: Path) -> None:
    """A run that was asleep while another took over: the journal is where it learns of it."""
    world = small_world()
    sleeper, other_journal = (Journal.open(tmp_path / "state", "vc-uuid", world.tick) for _ in range(2))
    run = sleeper.begin("rotate night", night="2026-11-20")
    sleeper.intend(run, SuspendVm("vm-1"), world.snapshot())
    [left_open] = other_journal.open_runs(["rotate night"])
    other_journal.end(left_open)
    with pytest.raises(Locked, match="another gpuops has ended this rotate night") as refused:
        sleeper.intend(run, SuspendVm("vm-2"), world.snapshot())
    assert refused.value.exit_code == 6
    sleeper.close()
    other_journal.close()
