"""The journal keeps what was intended, in a file of our own, and says so when it cannot."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from pytest_mock import MockerFixture
from sqlalchemy.exc import OperationalError

from gpuops.errors import StateDamaged
from gpuops.execute.journal import FILE_NAME, IntentState, Journal
from gpuops.execute.journal.journal_state import dump_state, load_state
from gpuops.execute.journal.record import Kind, Record, dump_step, load_step, text_of
from gpuops.execute.runs import NightVms
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.vcenter.vm import VmDrs
from gpuops.model.workloads.cluster import LatencyLevel, RdmaKind
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    CreateVm,
    NewCard,
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from tests.execute.journals import records
from tests.execute.small_vcenter import small_world

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)

STEPS = (
    ReconfigureVm(
        "vm-1",
        VmChange(
            add=(
                NewVgpu("grid_a100-3-20c", numa_node=1),
                NewDirectPath(PciAddress.parse("0000:3b:00.0"), "A100", "sys-1", 0x10DE, 0x20F1),
                NewDynamic(((0x10DE, 0x20F1),), label="ml"),
            ),
            remove=(13000,),
            replace_profile=((13001, "nvidia_a40-8q"),),
            extra_config={"pciPassthru.use64bitMMIO": "TRUE"},
            memory_locked=True,
        ),
    ),
    RelocateVm("vm-1", "host-2"),
    PowerOnVm("vm-1", "host-2"),
    ResumeVm("vm-1"),
    SuspendVm("vm-1"),
    PowerOffVm("vm-1"),
    ShutDownGuest("vm-1", grace_s=60, then_off=True),
    RunInGuest("vm-1", "/usr/local/bin/checkpoint", "--now", limit_s=240),
    SetVmDrs("vm-1", VmDrs.MANUAL),
    SetAttribute("vm-1", "gpuops.rotation", "2026-11-20 desktop"),
    CloseGate("vm-1", "machine-1"),
    OpenGate("vm-1", "machine-1"),
    CloneVm(
        "new:/dc/vm/train-00",
        "train-00",
        "vm-9",
        "host-1",
        "group-v1",
        None,
        8,
        65536,
        "made by gpuops",
        {"a": "b"},
        NewCard(RdmaKind.SRIOV, "50 1d", "dvportgroup-1"),
        memory_locked=True,
        latency=LatencyLevel.HIGH,
    ),
    CreateVm("new:gpuops-lock", "gpuops-lock", "host-1", "esx-01", "ds-1", "carries the lease"),
    PowerOffForRemoval("vm-1", "train-00", "made by gpuops"),
    RemoveVm("vm-1", "train-00", "made by gpuops"),
)


class Ticking:
    """A clock of one second per look."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "state", "vc-1", Ticking())
    yield journal
    journal.close()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_step_is_read_back_as_the_same_step(step: Step) -> None:
    assert load_step(json.loads(json.dumps(dump_step(step)))) == step


def test_every_kind_of_step_is_covered_here() -> None:
    assert {type(step) for step in STEPS} == set(get_args(Step))


@pytest.mark.parametrize("body", [{}, {"Nuke": {"vm": "vm-1"}}, {"SuspendVm": {}}, {"A": {}, "B": {}}])
def test_a_step_of_another_version_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(StateDamaged, match="cannot read"):
        load_step(body)


def test_directory_and_files_belong_to_their_owner_alone(journal: Journal, tmp_path: Path) -> None:
    journal.begin("test")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert modes == dict.fromkeys((FILE_NAME, f"{FILE_NAME}-shm", f"{FILE_NAME}-wal"), 0o600)


def test_an_intent_is_there_for_another_process_at_once(journal: Journal, tmp_path: Path) -> None:
    run = journal.begin("rotate night", night="2026-11-20", policy="text")
    op_id = journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    other_journal = Journal.open(tmp_path / "state", "vc-1", Ticking())
    assert other_journal.open_runs(["rotate night"]) == (run,)
    [intent] = other_journal.open_intents(run)
    assert (intent.op_id, intent.step, intent.state, intent.task) == (
        op_id,
        SuspendVm("vm-1"),
        IntentState.INTENT,
        None,
    )
    journal.record_task(op_id, "task-7")
    assert other_journal.open_intents(run)[0].task == "task-7"
    journal.record_outcome(op_id, IntentState.DONE)
    assert other_journal.open_intents(run) == ()
    journal.end(run)
    assert other_journal.open_runs(["rotate night"]) == ()
    other_journal.close()


def test_what_the_vm_was_is_kept_with_the_intent(journal: Journal, tmp_path: Path) -> None:
    run = journal.begin("test")
    journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    [intent] = [record for record in records(tmp_path / "state", "vc-1") if record.kind is Kind.INTENT]
    assert intent.body["before"] == {
        "host": "host-1",
        "power": "poweredOn",
        "profiles": ["nvidia_a40-24q"],
        "name": "desktop-01",
        "uuid": "50vm-1",
    }


def test_vcenters_do_not_see_each_others_runs(journal: Journal, tmp_path: Path) -> None:
    journal.begin("rotate night")
    NightVms(journal).save([original("vm-1")])
    other_journal = Journal.open(tmp_path / "state", "vc-2", Ticking())
    assert other_journal.open_runs(["rotate night"]) == ()
    assert NightVms(other_journal).all() == ()
    assert other_journal.last_change() is None
    other_journal.close()


def original(vm: str, night: str = "2026-11-20", host: str = "host-1") -> Original:
    return Original(night, Role.DESKTOP, vm, f"50{vm}", f"desktop {vm}", host, ("nvidia_a40-24q",))


def test_a_saved_original_is_never_overwritten(journal: Journal) -> None:
    NightVms(journal).save([original("vm-1", host="host-1")])
    NightVms(journal).save([original("vm-1", host="host-2"), original("vm-2", host="host-2")])
    assert [(saved.vm, saved.host) for saved in NightVms(journal).all()] == [("vm-1", "host-1"), ("vm-2", "host-2")]


def test_a_returned_original_is_kept_and_no_longer_owed(journal: Journal) -> None:
    NightVms(journal).save([original("vm-1"), original("vm-1", night="2026-11-21")])
    NightVms(journal).record_return(original("vm-1"))
    assert [saved.night for saved in NightVms(journal).all()] == ["2026-11-21"]
    assert [(saved.night, saved.returned) for saved in NightVms(journal).all("2026-11-20")] == [
        ("2026-11-20", True),
        ("2026-11-21", False),
    ]


@pytest.mark.parametrize(
    ("state", "was_taken"),
    [
        (None, True),
        (IntentState.DONE, True),
        (IntentState.UNKNOWN, True),
        (IntentState.FAILED, False),
    ],
)
def test_only_a_certain_failure_means_not_taken(journal: Journal, state: IntentState | None, was_taken: bool) -> None:
    run = journal.begin("rotate night", night="2026-11-20")
    NightVms(journal).save([original("vm-1"), original("vm-2")])
    op_id = journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    if state is not None:
        journal.record_outcome(op_id, state)
    assert {saved.vm: saved.taken for saved in NightVms(journal).all()} == {"vm-1": was_taken, "vm-2": False}


@pytest.mark.parametrize(("end", "unsure"), [(IntentState.UNKNOWN, True), (IntentState.DONE, False)])
def test_what_was_lost_may_still_come_for_ten_minutes(tmp_path: Path, end: IntentState, unsure: bool) -> None:
    clock = Ticking()
    journal = Journal.open(tmp_path / "state", "vc-1", clock)
    run = journal.begin("rotate night", night="2026-11-20")
    NightVms(journal).save([original("vm-1")])
    journal.record_outcome(journal.intend(run, SuspendVm("vm-1"), small_world().snapshot()), end)
    assert [saved.unsure for saved in NightVms(journal).all()] == [unsure]
    checkpoint = Record(journal.state.seq, "", Kind.CHECKPOINT, clock.now, dump_state(journal.state))
    state_read = load_state("vc-1", checkpoint)
    assert state_read is not None
    assert state_read.lost == journal.state.lost
    clock.now += LATE
    assert [saved.unsure for saved in NightVms(journal).all()] == [False]
    journal.close()


def test_when_a_desktop_was_suspended_is_kept_until_it_is_taken_anew(tmp_path: Path) -> None:
    clock = Ticking()
    journal = Journal.open(tmp_path / "state", "vc-1", clock)
    run = journal.begin("rotate night", night="2026-11-20")
    NightVms(journal).save([original("vm-1"), original("vm-2")])
    for vm, moment in (("vm-1", clock.now), ("vm-2", None)):  # an older gpuops noted none
        op_id = journal.intend(run, SuspendVm(vm), small_world().snapshot())
        journal.record_outcome(op_id, IntentState.DONE, suspended_at=moment)
        assert [saved.suspended_at for saved in NightVms(journal).all() if saved.vm == vm] == [moment]
    body = json.loads(text_of(dump_state(journal.state)))
    state_read = load_state("vc-1", Record(journal.state.seq, "", Kind.CHECKPOINT, clock.now, body))
    assert state_read is not None
    assert state_read.originals == journal.state.originals
    journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    assert {saved.suspended_at for saved in NightVms(journal).all()} == {None}
    journal.close()


def test_the_last_change_is_the_youngest_row(journal: Journal) -> None:
    assert journal.last_change() is None
    run = journal.begin("attach")
    assert journal.last_change() == run.started
    op_id = journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    journal.record_outcome(op_id, IntentState.DONE)
    settled = journal.last_change()
    assert settled is not None
    assert settled > run.started
    journal.end(run)
    ended = journal.last_change()
    assert ended is not None
    assert ended > settled


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / FILE_NAME).write_bytes(b"not a database, but long enough to have a header" * 100)
    (state / FILE_NAME).chmod(0o600)
    with pytest.raises(StateDamaged, match="file is not a database") as damaged:
        Journal.open(state, "vc-1", Ticking())
    assert damaged.value.exit_code == 7
    assert "markers" in damaged.value.hint


def test_another_schema_is_refused(journal: Journal, tmp_path: Path) -> None:
    journal.close()
    with sqlite3.connect(tmp_path / "state" / FILE_NAME) as database:
        database.execute("UPDATE schema_version SET version = 99")
    database.close()
    with pytest.raises(StateDamaged, match="has schema 99, this version reads only schema 2"):
        Journal.open(tmp_path / "state", "vc-1", Ticking())


@pytest.mark.parametrize("reason", ["database or disk is full", "disk I/O error"])
def test_a_disk_that_does_not_take_the_row_is_an_error(journal: Journal, mocker: MockerFixture, reason: str) -> None:
    run = journal.begin("test")
    failing = OperationalError("COMMIT", {}, sqlite3.OperationalError(reason))
    mocker.patch("sqlalchemy.engine.default.DefaultDialect.do_commit", side_effect=failing)
    with pytest.raises(StateDamaged, match=reason):
        journal.intend(run, SuspendVm("vm-1"), small_world().snapshot())
    mocker.stopall()
    assert journal.open_intents(run) == ()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_others_can_write_in_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(StateDamaged, match="others can write") as refused:
        Journal.open(state, "vc-1", Ticking())
    assert refused.value.hint == f"chmod 700 {state}"
    assert list(state.iterdir()) == []


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    state, target = tmp_path / "state", tmp_path / "target"
    state.mkdir(mode=0o700)
    target.write_text("precious")
    (state / FILE_NAME).symlink_to(target)
    with pytest.raises(
        StateDamaged, match=f"{FILE_NAME} is a symbolic link, and links are not followed here"
    ) as refused:
        Journal.open(state, "vc-1", Ticking())
    assert refused.value.hint.startswith(f"put the file itself into {state}")
    assert target.read_text() == "precious"


def test_a_linked_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with pytest.raises(StateDamaged, match=r"state directory .*link is a symbolic link"):
        Journal.open(tmp_path / "link", "vc-1", Ticking())


def test_a_hard_link_and_a_wide_mode_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / FILE_NAME).touch(mode=0o644)
    with pytest.raises(StateDamaged, match="others can read or write"):
        Journal.open(state, "vc-1", Ticking())
    (state / FILE_NAME).chmod(0o600)
    (tmp_path / "second").hardlink_to(state / FILE_NAME)
    with pytest.raises(StateDamaged, match="not a plain file"):
        Journal.open(state, "vc-1", Ticking())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GPUOPS_STATE_DIR": "/srv/gpuops", "XDG_STATE_HOME": "/x"}, "/srv/gpuops"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/op"}, "/x/gpuops"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/op"}, "/home/op/.local/state/gpuops"),
        ({"HOME": "/home/op"}, "/home/op/.local/state/gpuops"),
    ],
)
def test_where_the_state_lies(environ: dict[str, str], expected: str) -> None:
    assert default_state_dir(environ) == Path(expected)
