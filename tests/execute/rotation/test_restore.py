"""A restore: what was named is back at once, nothing else is touched, and no journal is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuops.errors import Refused, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.journal_state import JournalState, dump_state, load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.rotation.rotation import NOTHING_CUT_OFF, restore
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import PowerOffVm, ResumeVm, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.taken_vms import Whereabouts
from tests.execute.nights import POLICY, Night, effects, morning_is_good
from tests.execute.small_vcenter import Killed


@pytest.fixture
def night(tmp_path: Path) -> Night:
    new_night = Night(tmp_path / "state")
    assert new_night.run(RunKind.NIGHT).exit_code == 0
    return new_night


def restore_vms(
    night: Night, *vms: str, policy: Policy | None = None, from_markers: bool = False, kill_at: int | None = None
) -> Report:
    with night._site(kill_at) as site:
        return restore(policy, site, vms, from_markers=from_markers, apply=True, consent=agreed)


def test_without_names_it_is_a_morning(night: Night) -> None:
    assert restore_vms(night).exit_code == 0
    morning_is_good(night)


def test_an_ml_vm_is_stopped_only_when_it_is_named(night: Night) -> None:
    report = restore_vms(night, "desktop-01")
    [failed] = [outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]
    assert failed.step == ResumeVm("vm-1", "host-1")
    assert "the GPUs of esx-01 are held by desktop-03, desktop-04, desktop-05, ml-01" in failed.reason
    assert failed.reason.endswith(", then gpuops rotate restore --vm desktop-01")
    assert report.exit_code == 4
    assert (night.world.power("ml-01"), night.world.power("ml-02")) == (PowerState.ON, PowerState.ON)
    freed = restore_vms(night, "ml-01", "desktop-01")
    assert freed.exit_code == 0
    assert {step.vm for step in freed.plan.steps} == {"vm-91", "vm-1"}
    assert (night.world.power("desktop-01"), night.world.power("desktop-02"), night.world.power("ml-02")) == (
        PowerState.ON,
        PowerState.SUSPENDED,
        PowerState.ON,
    )


def test_the_night_is_still_open_after_it_and_takes_nothing_anew(night: Night) -> None:
    restore_vms(night, "ml-01", "desktop-01")
    whereabouts = {mine.original.name: mine.whereabouts for mine in status(_site(night)).vms}
    assert whereabouts == {
        "desktop-01": Whereabouts.BACK,
        "desktop-02": Whereabouts.AWAY,
        "ml-01": Whereabouts.BACK,
        "ml-02": Whereabouts.AWAY,
    }
    second_night = night.run(RunKind.NIGHT)
    assert second_night.plan.steps == (), "the ML VM that gave way in an emergency takes no other desktops for it"
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good_for_desktops(night)


def test_a_second_restore_changes_nothing_and_says_so(night: Night) -> None:
    restore_vms(night, "ml-01", "desktop-01")
    before = list(night.world.ledger)
    second_restore = restore_vms(night, "ml-01", "desktop-01")
    assert (second_restore.exit_code, night.world.ledger) == (0, before)
    assert second_restore.plan.because == ("desktop-01: is running", "ml-01: is powered off")


@pytest.mark.parametrize(
    ("name", "why"), [("desktop-99", "no VM of a night has this name"), ("batch-off", "no night has taken it")]
)
def test_a_name_that_no_night_took_refuses_all_of_it(night: Night, name: str, why: str) -> None:
    night.world.set("vm-5", name="batch-off")
    night.world._set_power("vm-5", PowerState.OFF)
    sent = len(night.world.requests)
    report = restore_vms(night, "desktop-01", name)
    assert report.exit_code == 3
    assert [(rejection.subject, why in rejection.rule) for rejection in report.plan.rejections] == [(name, True)]
    assert len(night.world.requests) == sent


def test_a_running_vm_that_no_night_took_is_as_it_should_be(night: Night) -> None:
    report = restore_vms(night, "desktop-03")
    assert (report.exit_code, report.plan.steps) == (0, ())
    assert report.plan.because == ("desktop-03: is running, and no night has taken it",)


def test_from_markers_alone_on_a_new_machine(night: Night) -> None:
    shutil.rmtree(night.state_dir)
    with pytest.raises(UsageError, match="--from-markers needs a policy"):
        restore_vms(night, from_markers=True)
    assert restore_vms(night, policy=POLICY, from_markers=True).exit_code == 0
    assert night.markers() == set()
    morning_is_good_for_desktops(night)


def test_markers_that_cannot_be_seen_are_not_taken_for_none(night: Night) -> None:
    night.world.attributes.clear()
    with pytest.raises(Refused, match=r"no custom attribute is called gpuops\.rotation, or this login cannot read it"):
        restore_vms(night, policy=POLICY, from_markers=True)


def test_from_markers_does_not_believe_the_journal(night: Night) -> None:
    night.world.set("vm-1", attributes={})
    report = restore_vms(night, policy=POLICY, from_markers=True)
    assert ResumeVm("vm-1", "host-1") not in report.plan.steps
    assert night.world.power("desktop-01") is PowerState.SUSPENDED
    assert night.world.power("desktop-02") is PowerState.ON
    assert restore_vms(night).exit_code == 0, "the journal still knows it"
    assert night.world.power("desktop-01") is PowerState.ON


def test_one_desktop_from_the_markers_of_a_new_machine(night: Night) -> None:
    shutil.rmtree(night.state_dir)
    report = restore_vms(night, "ml-01", "desktop-02", policy=POLICY, from_markers=True)
    assert report.exit_code == 0
    assert (night.world.power("desktop-02"), night.world.power("desktop-01")) == (PowerState.ON, PowerState.SUSPENDED)
    assert night.markers() == {"desktop-01", "ml-02"}


@pytest.mark.long
def test_killed_anywhere_it_is_finished_by_resume_for_the_same_vms_alone(tmp_path: Path) -> None:
    kill_at, ended = 0, False
    while not ended:
        kill_at += 1
        night = Night(tmp_path / str(kill_at))
        night.run(RunKind.NIGHT)
        try:
            restore_vms(night, "ml-01", "desktop-01", kill_at=kill_at)
            ended = True
        except Killed:
            night.world.settle() if kill_at % 2 else None
            assert night.resume().exit_code == 0
        assert night.resume().plan == NOTHING_CUT_OFF
        powers = {name: night.world.power(name) for name in ("desktop-02", "ml-02")}
        assert powers == {"desktop-02": PowerState.SUSPENDED, "ml-02": PowerState.ON}
        if status(_site(night)).cut_off is None and night.world.power("desktop-01") is PowerState.ON:
            assert night.world.power("ml-01") is PowerState.OFF
        assert night.run(RunKind.DAY).exit_code == 0
        morning_is_good(night)
        shutil.rmtree(tmp_path / str(kill_at))
    assert kill_at > 20, "the sweep went over the whole restore"


@pytest.mark.long
def test_a_restore_leaves_a_night_that_was_cut_off_to_resume(tmp_path: Path) -> None:
    night = Night(tmp_path / "state")
    kill_at = 0
    while night.world.power("desktop-01") is not PowerState.SUSPENDED:
        kill_at += 1
        night = Night(tmp_path / str(kill_at))
        assert night.killed(RunKind.NIGHT, kill_at)
    assert restore_vms(night, "desktop-01").exit_code == 0
    assert status(_site(night)).cut_off == "rotate night"
    night.resume()
    assert night.world.power("desktop-01") is PowerState.ON
    assert night.run(RunKind.DAY).exit_code == 0


def test_a_night_does_not_begin_over_a_restore_that_was_cut_off(night: Night) -> None:
    with pytest.raises(Killed):
        restore_vms(night, "ml-01", "desktop-01", kill_at=4)
    with pytest.raises(Refused, match=r"the restore that began at 2026-11-20 .* did not end"):
        night.run(RunKind.NIGHT)


def test_a_checkpoint_keeps_the_vms_of_an_open_restore(night: Night) -> None:
    with pytest.raises(Killed):
        restore_vms(night, "ml-01", "desktop-01", kill_at=4)
    journal = Journal.open(night.state_dir, "vc-uuid", night.world.tick)
    try:
        body = dump_state(journal.state)
        state = load_state("vc-uuid", Record(journal.state.seq, "", Kind.CHECKPOINT, night.world.tick(), body))
    finally:
        journal.close()
    assert isinstance(state, JournalState)
    assert [open_run.run.vms for open_run in state.runs.values()] == [("ml-01", "desktop-01")]


@pytest.mark.parametrize("name", ["moid:vm-1", "uuid:50vm-1", "/dc/vm/desktop-01:a"])
def test_the_command_that_is_said_of_a_name_with_a_colon_is_one_that_works(night: Night, name: str) -> None:
    night.world.set("vm-1", name="desktop-01:a", path="/dc/vm/desktop-01:a")
    [failed] = [outcome for outcome in restore_vms(night, name).outcomes if outcome.verdict is Verdict.FAILED]
    assert failed.reason.endswith(", then gpuops rotate restore --vm moid:vm-1")
    assert restore_vms(night, "moid:vm-91", name).exit_code == 0
    assert night.world.vms["vm-1"].power is PowerState.ON


def test_an_empty_name_is_refused_before_anything_is_looked_at(night: Night) -> None:
    with pytest.raises(UsageError, match="--vm: the name is empty"):
        restore_vms(night, "")


def test_it_only_brings_back(night: Night) -> None:
    sent = len(night.world.ledger)
    restore_vms(night, "ml-01", "desktop-01")
    kinds = {type(effect.step) for effect in night.world.ledger[sent:]}
    assert kinds <= {ShutDownGuest, PowerOffVm, ResumeVm, SetAttribute}
    assert effects(night.world, PowerOffVm) == [], "the guest shut down by itself"


def morning_is_good_for_desktops(night: Night) -> None:
    assert [power for name, power in night.powers().items() if name.startswith("desktop")] == [PowerState.ON] * 5
    assert night.markers() == set()


def _site(night: Night) -> Site:
    from tests.execute.small_vcenter import SmallVcenter

    return Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
