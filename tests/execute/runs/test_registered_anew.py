"""A VM that was taken out of the inventory and registered again has another id, and is the same by its instance uuid:
what the journal says of it holds under the new id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.rotation.open_nights import abandon_vm
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import NightVms, RunKind, in_rotation
from gpuops.execute.site import Site, agreed
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import ResumeVm, SuspendVm
from tests.execute.nights import POLICY, effects
from tests.execute.small_vcenter import Killed, SmallVcenter, World, small_world


@pytest.fixture
def world() -> World:
    return small_world()


def site(world: World, state_dir: Path) -> Site:
    return Site(SmallVcenter(world), state_dir, world.tick)


def run(world: World, kind: RunKind, state_dir: Path, *, apply: bool = True) -> Report:
    return rotate(kind, POLICY, site(world, state_dir), apply=apply, consent=agreed)


def registered_anew(world: World, ref: str) -> str:
    """Its new id. Custom attributes stay behind: they are vCenter's, not the VM's."""
    vm, new = world.vms.pop(ref), f"{ref}0"
    assert ref not in world.on_gpu
    world.vms[new] = replace(vm, ref=new, attributes={})
    return new


def refs_suspended(world: World) -> list[str]:
    return [vm.ref for vm in world.vms.values() if vm.power is PowerState.SUSPENDED]


def cut_off(world: World, state_dir: Path) -> str:
    """A night that was killed just after its first suspend had taken effect, unseen; the desktop's new id."""
    suspended_refs: list[str] = []

    def point(name: str) -> None:
        if name.startswith("after the effect") and refs_suspended(world):
            suspended_refs.extend(refs_suspended(world))
            raise Killed(name)

    with pytest.raises(Killed):
        rotate(
            RunKind.NIGHT, POLICY, Site(SmallVcenter(world, point), state_dir, world.tick), apply=True, consent=agreed
        )
    world.settle()
    return registered_anew(world, suspended_refs[0])


def test_what_a_killed_night_left_in_flight_is_found_done(world: World, tmp_path: Path) -> None:
    new = cut_off(world, tmp_path)
    looked = run(world, RunKind.DAY, tmp_path, apply=False)
    assert new in {step.vm for step in looked.plan.steps if isinstance(step, ResumeVm)}
    assert run(world, RunKind.DAY, tmp_path).exit_code == 0
    assert refs_suspended(world) == []


def test_a_morning_that_brings_it_back_ends_its_night(world: World, tmp_path: Path) -> None:
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    for ref in refs_suspended(world):
        registered_anew(world, ref)
    stopped: list[str] = []

    def point(name: str) -> None:
        if name.startswith("sent, no reply yet: ResumeVm"):
            stopped.append(name)
            raise Killed(name)

    with pytest.raises(Killed):
        rotate(RunKind.DAY, POLICY, Site(SmallVcenter(world, point), tmp_path, world.tick), apply=True, consent=agreed)
    assert stopped
    journal = Journal.open(tmp_path, "vc-uuid", world.tick)
    assert journal.ended_nights() == {POLICY.night(world.now)}
    journal.close()


def test_what_was_lost_need_not_be_waited_for_once_it_was_undone(world: World, tmp_path: Path) -> None:
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    old = refs_suspended(world)[0]
    with site(world, tmp_path).locked_journal("vc-uuid", alone=True) as journal:
        night = POLICY.night(world.now)
        lost = journal.intend(
            journal.begin(RunKind.NIGHT, night=night), SuspendVm(old), SmallVcenter(world).inventory()
        )
        journal.record_outcome(lost, IntentState.UNKNOWN)
        assert set(journal.state.lost) == {(night, old)}
        new = registered_anew(world, old)
        back = journal.intend(journal.begin(RunKind.DAY), ResumeVm(new), SmallVcenter(world).inventory())
        journal.record_outcome(back, IntentState.DONE)
        assert set(journal.state.lost) == set()


def test_a_night_that_goes_on_saves_it_once_and_counts_it_as_taken(world: World, tmp_path: Path) -> None:
    new = cut_off(world, tmp_path)
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    journal = Journal.open(tmp_path, "vc-uuid", world.tick)
    mine = [night_vm for night_vm in NightVms(journal).all() if night_vm.uuid == world.vms[new].instance_uuid]
    journal.close()
    assert [night_vm.taken for night_vm in mine] == [True]
    suspends = [effect.step.vm for effect in effects(world, SuspendVm)]
    assert new not in suspends, "once is enough"
    assert run(world, RunKind.DAY, tmp_path).exit_code == 0
    assert refs_suspended(world) == []


def test_a_change_of_the_host_that_it_is_on_now_is_refused(world: World, tmp_path: Path) -> None:
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    new = registered_anew(world, refs_suspended(world)[0])
    world.set(new, host="host-2")
    journal = Journal.open(tmp_path, "vc-uuid", world.tick)
    refusals = list(in_rotation(journal, ["host-2"], SmallVcenter(world).inventory()))
    journal.close()
    assert any(refusal.rule.startswith(world.vms[new].name) for refusal in refusals)


def test_one_vm_of_two_nights_is_given_up_as_one(world: World, tmp_path: Path) -> None:
    new = cut_off(world, tmp_path)
    with site(world, tmp_path) as opened_site, opened_site.locked_journal("vc-uuid", alone=True) as journal:
        [mine] = [night_vm for night_vm in NightVms(journal).all() if night_vm.uuid == world.vms[new].instance_uuid]
        NightVms(journal).save([replace(mine, night="2026-11-19", vm=new)])
    abandonment = abandon_vm(site(world, tmp_path), mine.name, None, apply=True, consent=lambda shown_plan: None)
    assert abandonment.applied
    journal = Journal.open(tmp_path, "vc-uuid", world.tick)
    assert mine.name not in {night_vm.name for night_vm in NightVms(journal).all()}
    journal.close()


def test_one_that_was_given_up_and_is_taken_again_is_given_up_no_more(world: World, tmp_path: Path) -> None:
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    old = refs_suspended(world)[0]
    name = world.vms[old].name
    abandon_vm(site(world, tmp_path), name, None, apply=True, consent=lambda shown_plan: None)
    assert run(world, RunKind.DAY, tmp_path).exit_code == 0
    new = registered_anew(world, old)
    world._set_power(new, PowerState.ON)
    journal = Journal.open(tmp_path, "vc-uuid", world.tick)
    second_run = journal.begin(RunKind.NIGHT, night="2026-11-21")
    journal.intend(second_run, SuspendVm(new), SmallVcenter(world).inventory())
    assert journal.given_up() == ()
    journal.close()
