"""Two runners and one lease: whoever does not hold it starts nothing, in every order in which they may go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import LeaseReverted, Locked, NoPermission, PartlyDone, Refused, StepFailed, Trouble, UsageError
from gpuops.execute.lease.lease import HeldLease, take
from gpuops.execute.lease.lock_vm import LockVm
from gpuops.execute.lease.nonces import Nonces
from gpuops.execute.rotation.rotation import restore, rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.rotation.unlock import unlock
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.night_record import MOST_LEASES
from gpuops.model.nights.rotation import LATE, Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.outcome import Report
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ReconfigureVm, ResumeVm, SetAttribute, Step, SuspendVm
from gpuops.plan.rotation import lease as rules
from gpuops.plan.rotation.lease import CALL_TIMEOUT_S, HEARTBEAT_S, KEY, TTL_S, Lease, lease_text, parse_lease
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import START, SmallVcenter, World, _vm, small_world

LOCK = "gpuops-lock"
POLICY: Policy = parse_policy(POLICY_TEXT + f"lock_vm: {LOCK}\n", "leased")


@pytest.fixture
def world() -> World:
    made = small_world()
    made.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
    return made


def site(world: World, state_dir: Path) -> Site:
    """A process of one machine; its own clock goes as vCenter's does, from another beginning."""
    return Site(SmallVcenter(world), state_dir, world.tick, passed_s=lambda: (world.now - START).total_seconds() + 5000)


def held(world: World) -> Lease | None:
    return parse_lease((world.vms["vm-99"].extra_config or {}).get(KEY, ""))


def number(world: World) -> int:
    lease = held(world)
    assert lease is not None
    return lease.epoch


def run(world: World, kind: RunKind, state_dir: Path, policy: Policy = POLICY) -> Report:
    return rotate(kind, policy, site(world, state_dir), apply=True, consent=agreed)


def about_the_lock(report: Report) -> list[str]:
    """Its warnings, but for the one that the night whose window is still open ends with it."""
    return [text for text in report.plan.warnings if "ends with this return" not in text]


def acts(world: World) -> list[Step]:
    return [each.step for each in world.ledger if isinstance(each.step, SuspendVm | PowerOnVm | ResumeVm | PowerOffVm)]


def test_a_night_holds_it_and_gives_it_back(world: World, tmp_path: Path) -> None:
    seen: list[Lease | None] = []
    world.on_submit = lambda step: seen.append(held(world)) if isinstance(step, SuspendVm) else None
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    now = held(world)
    assert now is not None
    assert {each.epoch for each in seen if each is not None and each.nonce} == {now.epoch}
    assert now.nonce == ""
    assert run(world, RunKind.DAY, tmp_path / "b").exit_code == 0, "another machine goes by the markers"
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


def powers(world: World) -> list[tuple[str, PowerState | None]]:
    return [(vm.name, vm.power) for vm in world.vms.values()]


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_whoever_holds_it_on_another_machine_is_named_and_nothing_is_done(
    world: World, tmp_path: Path, kind: RunKind
) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    before = len(world.requests)
    with pytest.raises(Locked, match=r"pid \d+ on .* holds the lease until 2026-11-20 21:03"):
        run(world, kind, tmp_path / "b")
    assert len(world.requests) == before


@pytest.mark.parametrize("hours", [0, 1, -1], ids=["", "its clock put on", "its clock put back"])
def test_a_lease_that_ran_out_is_taken_with_a_higher_number(world: World, tmp_path: Path, hours: int) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    before = number(world)
    world.now += timedelta(seconds=TTL_S + 1)
    there = held(world)
    assert there is not None
    ahead = replace(there, epoch=before + hours * 360_000, nonce="")
    world.set("vm-99", extra_config={KEY: lease_text(ahead)})
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert number(world) > max(before, ahead.epoch)


def test_no_two_leases_have_one_number_where_nobody_knows_of_the_first(world: World, tmp_path: Path) -> None:
    """The lock VM is reverted before the first machine has set a marker: the second one cannot know that it was."""
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    first = number(world)
    revert(world)
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert number(world) > first


def test_the_same_machine_does_not_wait_for_its_own_dead_run(world: World, tmp_path: Path) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0


def test_a_lease_taken_over_in_the_night_stops_it_and_the_new_holder_returns_all(world: World, tmp_path: Path) -> None:
    """A zombie: stopped for longer than the lease, and then going on."""
    morning: list[Report] = []

    def stopped(step: Step) -> None:
        if isinstance(step, PowerOnVm) and not morning:
            world.now += timedelta(seconds=TTL_S + 1)
            other = site(world, tmp_path / "b")
            world.on_submit = lambda step: None
            morning.append(restore(POLICY, other, (), from_markers=True, apply=True, consent=agreed))
            world.on_submit = stopped

    world.on_submit = stopped
    with pytest.raises(Locked, match="nothing more was started"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    [returned] = morning
    after = [each for each in acts(world) if isinstance(each, PowerOnVm)]
    assert len(after) <= 1, "at most the one that was in flight when it was stopped"
    assert returned.exit_code in (0, 4)
    # what the stopped machine sent last may still come: its VMs are named until then
    named = restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
    assert named.exit_code == PartlyDone.exit_code
    world.now += LATE
    late = restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
    assert late.exit_code == 0
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


def test_it_is_renewed_while_steps_are_waited_for(world: World, tmp_path: Path) -> None:
    expiries: set[str] = set()
    numbers: set[int] = set()

    def slow(step: Step) -> None:
        if not isinstance(step, ReconfigureVm):
            world.now += timedelta(seconds=HEARTBEAT_S)
        there = held(world)
        if there is not None and there.nonce:
            expiries.add(there.expires.isoformat())
            numbers.add(there.epoch)

    world.on_submit = slow
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    assert len(expiries) > 3
    assert len(numbers) == 1


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_return_goes_on_without_a_lock_vm_and_a_night_does_not(world: World, tmp_path: Path, kind: RunKind) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    run(world, RunKind.DAY, tmp_path / "a") if kind is RunKind.NIGHT else None
    del world.vms["vm-99"]
    if kind is RunKind.NIGHT:
        with pytest.raises(Refused, match=r"not set up for policy small: no VMs are called gpuops-lock \(lock_vm\)"):
            run(world, kind, tmp_path / "a")
        return
    report = run(world, kind, tmp_path / "a")
    assert report.exit_code == 0
    assert any("this machine's lock alone keeps other runs away" in text for text in report.plan.warnings)


def test_what_gpuops_did_not_write_is_refused_and_left_there(world: World, tmp_path: Path) -> None:
    world.set("vm-99", extra_config={KEY: '{"format": 9}'})
    with pytest.raises(Refused, match="did not write"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    assert (world.vms["vm-99"].extra_config or {})[KEY] == '{"format": 9}'


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_who_may_not_write_it_takes_nothing_and_still_returns(world: World, tmp_path: Path, kind: RunKind) -> None:
    def forbid(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            raise NoPermission(f"{LOCK}: this login lacks VirtualMachine.Config.AdvancedConfig")

    if kind is RunKind.DAY:
        run(world, RunKind.NIGHT, tmp_path / "a")
    world.on_submit = forbid
    if kind is RunKind.NIGHT:
        with pytest.raises(NoPermission):
            run(world, kind, tmp_path / "a")
        assert acts(world) == []
        return
    report = run(world, kind, tmp_path / "a")
    assert (report.exit_code, len(about_the_lock(report))) == (0, 1)


def hung(world: World) -> None:
    """A task that never ends runs on the lock VM."""

    def busy(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            error = StepFailed(f"{LOCK}: another task is running on it")
            error.trouble = Trouble.BUSY
            raise error

    world.on_submit = busy


def gone(world: World) -> None:
    world.vms.pop("vm-99", None)


def unreadable(world: World) -> None:
    world.set("vm-99", extra_config=None)


def forbidden(world: World) -> None:
    def forbid(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            raise NoPermission(f"{LOCK}: this login lacks VirtualMachine.Config.AdvancedConfig")

    world.on_submit = forbid


def later(world: World, befalls: Callable[[World], None]) -> None:
    """It befalls the lock VM between two steps, and each step then takes a heartbeat."""

    def strike(step: Step) -> None:
        if not isinstance(step, ReconfigureVm):
            befalls(world)
            told = world.on_submit
            world.on_submit = lambda step: slowly(step, told)
            slowly(step, told)

    def slowly(step: Step, told: Callable[[Step], None]) -> None:
        if not isinstance(step, ReconfigureVm):
            world.now += timedelta(seconds=HEARTBEAT_S)
        if told is not strike:
            told(step)

    world.on_submit = strike


@pytest.mark.parametrize("befalls", [hung, gone, unreadable, forbidden])
def test_no_desktop_stays_away_for_what_befalls_the_lock_vm(
    world: World, tmp_path: Path, befalls: Callable[[World], None]
) -> None:
    """In the middle of a return it goes on, and the next one begins: whoever holds a lease is still kept off."""
    run(world, RunKind.NIGHT, tmp_path)
    later(world, befalls)
    report = run(world, RunKind.DAY, tmp_path)
    assert (report.exit_code, len(about_the_lock(report))) == (0, 1)
    assert "could not be renewed" in about_the_lock(report)[0]
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
    assert run(world, RunKind.DAY, tmp_path / "another").exit_code == 0


def test_a_task_that_hangs_on_the_lock_vm_keeps_a_night_away_and_no_return(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path)
    hung(world)
    with pytest.raises(Locked, match="could not be written in 3 tries: gpuops-lock: another task is running on it"):
        run(world, RunKind.NIGHT, tmp_path)
    report = run(world, RunKind.DAY, tmp_path)
    assert report.exit_code == 0
    assert about_the_lock(report)[0].endswith("this machine's lock alone keeps other runs away")
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


@pytest.mark.parametrize("befalls", [hung, gone, unreadable, forbidden])
def test_a_night_whose_lease_cannot_be_renewed_takes_nothing_more(
    world: World, tmp_path: Path, befalls: Callable[[World], None]
) -> None:
    """It ends in order, whatever was the reason, and the morning returns what it has taken."""
    later(world, befalls)
    with suppress(Locked):  # the lock VM is gone: somebody may make another one, and a run take a lease on that
        assert run(world, RunKind.NIGHT, tmp_path).exit_code == PartlyDone.exit_code
    assert len(acts(world)) < 4
    assert run(world, RunKind.DAY, tmp_path).exit_code == 0
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


def test_a_return_without_its_lease_stops_when_another_takes_it(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path)
    resumed: list[Step] = []

    def stolen(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            raise NoPermission(f"{LOCK}: this login lacks VirtualMachine.Config.AdvancedConfig")
        world.now += timedelta(seconds=TTL_S)  # each step outlives the lease
        resumed.append(step)
        if len(resumed) == 2:
            other = Lease("pid 7 on b", "abc", number(world) + 1, world.now + timedelta(seconds=TTL_S * 9))
            world.set("vm-99", extra_config={KEY: lease_text(other)})

    def begins(step: Step) -> None:
        if not isinstance(step, ReconfigureVm):
            world.on_submit = stolen
            stolen(step)

    world.on_submit = begins
    with pytest.raises(Locked, match="pid 7 on b holds the lease"):
        run(world, RunKind.DAY, tmp_path)
    assert len(resumed) == 2


def test_a_lost_reply_is_read_back_not_believed(world: World, tmp_path: Path) -> None:
    world.lose_before.add(ReconfigureVm)
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    world.lose_after.add(ReconfigureVm)
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0


def test_unlock_gives_back_that_very_lease_and_no_other(world: World, tmp_path: Path) -> None:
    mine = site(world, tmp_path / "b")
    with pytest.raises(Refused, match="nobody holds the lease"):
        unlock(POLICY, mine, None)
    other = take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    lease = held(world)
    assert lease is not None
    with pytest.raises(Refused, match="holds the lease until") as told:
        unlock(POLICY, mine, "another")
    assert lease.nonce in told.value.hint
    assert status(mine, POLICY).lease == lease
    with pytest.raises(Locked, match="its run is alive, or died just now") as fresh:
        unlock(POLICY, mine, lease.nonce)
    assert fresh.value.hint.endswith(f"gpuops rotate unlock --id {lease.nonce} --force --policy FILE")
    assert held(world) == lease
    assert unlock(POLICY, mine, lease.nonce, force=True) == lease
    assert status(mine, POLICY).lease is None
    world.now += timedelta(seconds=HEARTBEAT_S)
    assert "somebody gave it back" in (other.objection() or "")
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    world.now += timedelta(seconds=HEARTBEAT_S + CALL_TIMEOUT_S + 2)
    stale = held(world)
    assert stale is not None
    assert unlock(POLICY, mine, stale.nonce) == stale, "not renewed for longer than a heartbeat and a call"
    with pytest.raises(UsageError, match="has no lock_vm"):
        unlock(parse_policy(POLICY_TEXT, "plain"), mine, None)


def test_a_lease_that_was_planted_for_years_is_named_and_can_be_taken_away(world: World, tmp_path: Path) -> None:
    """Whoever may write the lock VM can keep nights away, and no longer than until somebody looks."""
    planted = Lease("nobody", "0123", 7, START + timedelta(days=3650))
    world.set("vm-99", extra_config={KEY: lease_text(planted)})
    mine = site(world, tmp_path)
    with pytest.raises(Locked, match="nobody holds the lease until 2036-"):
        run(world, RunKind.NIGHT, tmp_path)
    assert acts(world) == []
    assert status(mine, POLICY).lease == planted
    assert unlock(POLICY, mine, "0123", force=True) == planted
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == 0
    assert acts(world) != []


def ml_ref(world: World) -> str:
    return next(vm.ref for vm in world.vms.values() if vm.name == "ml-01")


def test_a_start_that_failed_and_was_made_by_hand_is_not_stopped_in_the_morning(world: World, tmp_path: Path) -> None:
    """The marker that it leaves names a lease of this machine's own journal, which knows that nothing came of it."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == PartlyDone.exit_code
    assert world.vms[ref].attributes["gpuops.rotation"] == f"2026-11-20 ml lease={number(world)}"
    world.set(ref, power=PowerState.ON)
    report = run(world, RunKind.DAY, tmp_path)
    assert report.exit_code == 0
    assert world.power("ml-01") is PowerState.ON
    assert all("gpuops.rotation" not in vm.attributes for vm in world.vms.values())


def test_a_start_of_another_machines_night_is_stopped_after_one_of_ours_failed(world: World, tmp_path: Path) -> None:
    """The other one marked the VM anew, under a lease that this journal does not know."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == PartlyDone.exit_code
    world.failing.clear()
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert (world.power("ml-01"), world.vms[ref].attributes["gpuops.rotation"]) == (
        PowerState.ON,
        f"2026-11-20 ml lease={number(world)}",
    )
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert world.power("ml-01") is PowerState.OFF


def revert(world: World) -> None:
    """The lock VM is as it was before anybody took a lease."""
    world.set("vm-99", extra_config={}, change_version="reverted")


@pytest.mark.parametrize("machine", ["a", "b"], ids=["by its journal", "by the markers"])
def test_a_lock_vm_that_was_reverted_is_refused_to_a_night_until_somebody_sets_it_right(
    world: World, tmp_path: Path, machine: str
) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    before = number(world)
    revert(world)
    acted, mine = acts(world), site(world, tmp_path / machine)
    knows = "this machine's journal" if machine == "a" else r"the marker of \S+"
    wrong = f"lock_vm: {LOCK} carries no lease, {knows} says {before}: the VM was reverted to a snapshot or made anew"
    with pytest.raises(LeaseReverted, match=wrong) as refused:
        run(world, RunKind.NIGHT, tmp_path / machine)
    right_again = f"gpuops rotate unlock --id {before} --policy"
    assert refused.value.hint.startswith(f"when no gpuops rotates on any machine: {right_again}")
    assert (acts(world), held(world)) == (acted, None)
    assert "reverted" in status(mine, POLICY).lock_trouble
    with pytest.raises(LeaseReverted):
        unlock(POLICY, mine, None)
    with pytest.raises(LeaseReverted):
        unlock(POLICY, mine, str(before + 1))
    right = unlock(POLICY, mine, str(before))
    assert (right.nonce, right.epoch) == ("", before)
    assert status(mine, POLICY).lock_trouble == ""
    with pytest.raises(Refused, match="nobody holds the lease"):
        unlock(POLICY, mine, str(before))
    assert run(world, RunKind.NIGHT, tmp_path / machine).exit_code == 0
    assert number(world) > before


@pytest.mark.parametrize("machine", ["a", "b"], ids=["by its journal", "by the markers"])
def test_a_return_goes_on_by_a_lock_vm_that_was_reverted_and_sets_its_number_right(
    world: World, tmp_path: Path, machine: str
) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    before = number(world)
    revert(world)
    report = run(world, RunKind.DAY, tmp_path / machine)
    assert report.exit_code == 0
    assert [text for text in report.plan.warnings if "reverted to a snapshot or made anew; its number" in text] != []
    now = held(world)
    assert now is not None
    assert (now.nonce, now.epoch > before) == ("", True)
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_lock_vm_reverted_under_a_run_stops_a_night_and_no_return(
    world: World, tmp_path: Path, kind: RunKind
) -> None:
    if kind is RunKind.DAY:
        run(world, RunKind.NIGHT, tmp_path)
    before = len(acts(world))

    def strike(step: Step) -> None:
        if not isinstance(step, ReconfigureVm | SetAttribute):
            world.on_submit = lambda step: None
            revert(world)

    world.on_submit = strike
    if kind is RunKind.DAY:
        assert run(world, kind, tmp_path).exit_code == 0
        assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
        return
    with pytest.raises(Locked, match=r"the VM was reverted to a snapshot: lease number 0, ours is \d+: nothing more"):
        run(world, kind, tmp_path)
    assert len(acts(world)) - before == 1, "the one that had passed its check"


def test_of_marks_that_are_set_together_each_goes_by_a_look_of_its_own(world: World, tmp_path: Path) -> None:
    """The lock VM is reverted, and no time passes: only a look tells."""

    def strike(step: Step) -> None:
        if isinstance(step, SetAttribute):
            world.on_submit = lambda step: None
            revert(world)

    world.on_submit = strike
    with pytest.raises(Locked, match="the VM was reverted to a snapshot"):
        run(world, RunKind.NIGHT, tmp_path)
    assert sum(isinstance(each.step, SetAttribute) for each in world.ledger) == 1
    assert acts(world) == []


def test_a_marker_of_a_later_lease_stops_who_is_about_to_touch_its_vm(world: World, tmp_path: Path) -> None:
    """The lock VM carries an older lease again, and its holder, who was paused, finds it there."""

    def strike(step: Step) -> None:
        if isinstance(step, SuspendVm):
            world.on_submit = lambda step: None
            for vm in list(world.vms.values()):
                world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})

    world.on_submit = strike
    with pytest.raises(Locked, match=rf"a marker names lease number {MOST_LEASES}, ours is \d+"):
        run(world, RunKind.NIGHT, tmp_path)
    assert len(acts(world)) <= 1


@pytest.mark.parametrize("pause_s", [30, 400], ids=["unlocked by force", "run out"])
@pytest.mark.parametrize("kind", [SetAttribute, SuspendVm, PowerOnVm])
def test_a_paused_machine_whose_clocks_stand_still_finds_its_lease_gone(
    world: World, tmp_path: Path, kind: type[Step], pause_s: int
) -> None:
    """So many seconds of vCenter pass between two steps; another machine has taken the lease and given it back."""
    returned: list[int] = []
    began = world.now
    paused: list[datetime] = []
    mine = site(world, tmp_path / "a")
    mine.passed_s = lambda: (min([world.now, *paused]) - began).total_seconds()
    mine.clock = lambda: min([world.now, *paused])

    def pause(step: Step) -> None:
        if isinstance(step, kind) and not paused:
            paused.append(world.now)
            world.now += timedelta(seconds=pause_s)
            world.on_submit = lambda step: None
            there = held(world)
            assert there is not None
            if pause_s < TTL_S:
                unlock(POLICY, site(world, tmp_path / "b"), there.nonce, force=True)
            restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
            returned.append(len(world.ledger))

    world.on_submit = pause
    with pytest.raises(Locked, match="nothing more was started"):
        rotate(RunKind.NIGHT, POLICY, mine, apply=True, consent=agreed)
    sent = {each.op_id for each in world.ledger[returned[0] :]}
    assert len(sent) <= 1 + (kind is not SetAttribute), "the one that had passed its check, and what was in flight"


def test_a_lease_number_that_somebody_wrote_by_hand_ends_no_return(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    vm = next(vm for vm in world.vms.values() if vm.power is PowerState.SUSPENDED)
    world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})
    with pytest.raises(LeaseReverted, match=f"the marker of {vm.name} says {MOST_LEASES}"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    report = run(world, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 0
    assert any("no lease number is higher" in text for text in report.plan.warnings)
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0


# all interleavings of two runners


@dataclass
class Runner:
    """Its steps: look, write, then twice check and act. Each is one call to vCenter, and the other may come between."""

    world: World
    name: str
    held: HeldLease | None = None
    acted: list[int] = None  # type: ignore[assignment]
    refused: bool = False

    def steps(self) -> Iterator[None]:
        self.acted = []
        passed = lambda: (self.world.now - START).total_seconds()  # noqa: E731
        vm = LockVm(SmallVcenter(self.world), LOCK)
        there = vm.look()
        began = passed()
        now = vm.seen.taken_at
        yield
        if rules.holder_of(there, now, ()) is not None:
            self.refused = True
            return
        wanted = rules.next_lease(there, self.name, self.name, now)
        if not vm.write(wanted):
            self.refused = True
            return
        self.held = HeldLease(vm, wanted, began + TTL_S, passed)
        yield
        for _ in range(3):
            objection = self.held.objection()
            yield
            if objection is not None:
                return
            there = held(self.world)
            assert there is not None
            self.acted.append(there.epoch if there.nonce == self.name else -there.epoch)


@pytest.mark.long
@pytest.mark.parametrize("pause_s", [TTL_S + 1, 0.0, TTL_S / 2, TTL_S - CALL_TIMEOUT_S])
def test_every_order_of_two_runners_steps(pause_s: float) -> None:
    """`pause_s` passes before one of the steps, each in turn: as long as a process may be stopped."""
    orders = 0
    for chosen in combinations(range(12), 6):
        for paused in range(0, 12, 3):
            orders += 1
            world = small_world()
            world.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
            runners = [Runner(world, "a"), Runner(world, "b")]
            going = [runner.steps() for runner in runners]
            for number in range(12):
                if number == paused:
                    world.now += timedelta(seconds=pause_s)
                next(going[number in chosen], None)
            strays = [sum(epoch < 0 for epoch in runner.acted or ()) for runner in runners]
            assert sum(strays) <= 1, (chosen, paused)
            if pause_s + CALL_TIMEOUT_S < TTL_S:
                assert strays == [0, 0]
                assert sum(bool(runner.acted) for runner in runners) <= 1
    assert orders == 924 * 4


def test_a_lease_says_who_and_until_when() -> None:
    lease = Lease("pid 1 on jump", "abc", 7, START)
    assert parse_lease(lease_text(lease)) == lease
    assert parse_lease("") is None
    for text in ("{}", "[]", "x", lease_text(lease).replace("+00:00", ""), '{"format": 1}'):
        with pytest.raises(Refused):
            parse_lease(text)
