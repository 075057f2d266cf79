"""A lock VM that cannot be written, hangs, or is gone keeps nights away, and no return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import LeaseReverted, Locked, NoPermission, PartlyDone, Refused, StepFailed, Trouble, UsageError
from gpuops.execute.lease.lease import Nonces, take
from gpuops.execute.rotation.rotation_lock import unlock
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import ReconfigureVm, SetAttribute, Step
from gpuops.plan.rotation.lease_rules import CALL_TIMEOUT_S, HEARTBEAT_S, KEY, TTL_S, Lease, lease_text, parse_lease
from tests.execute.lease.leased import LOCK, POLICY, about_the_lock, acts, number, powers, read_lease, revert, run, site
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import START, World


@pytest.mark.long
@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_return_goes_on_without_a_lock_vm_and_a_night_does_not(world: World, tmp_path: Path, kind: RunKind) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    run(world, RunKind.DAY, tmp_path / "a") if kind is RunKind.NIGHT else None
    del world.vms["vm-99"]
    if kind is RunKind.NIGHT:
        with pytest.raises(Refused, match=r"not set up for policy small: no VM is called gpuops-lock \(lock_vm\)"):
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


def removed_lock_vm(world: World) -> None:
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
            submit = world.on_submit
            world.on_submit = lambda step: slowly(step, submit)
            slowly(step, submit)

    def slowly(step: Step, submit: Callable[[Step], None]) -> None:
        if not isinstance(step, ReconfigureVm):
            world.now += timedelta(seconds=HEARTBEAT_S)
        if submit is not strike:
            submit(step)

    world.on_submit = strike


@pytest.mark.long
@pytest.mark.parametrize("befalls", [hung, removed_lock_vm, unreadable, forbidden])
def test_no_desktop_stays_away_for_what_befalls_the_lock_vm(
    world: World, tmp_path: Path, befalls: Callable[[World], None]
) -> None:
    """In the middle of a return it continues, and the next one begins: the holder of a lease is still kept away."""
    run(world, RunKind.NIGHT, tmp_path)
    later(world, befalls)
    report = run(world, RunKind.DAY, tmp_path)
    assert (report.exit_code, len(about_the_lock(report))) == (0, 1)
    assert "could not be renewed" in about_the_lock(report)[0]
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
    assert run(world, RunKind.DAY, tmp_path / "another").exit_code == 0


@pytest.mark.long
def test_a_task_that_hangs_on_the_lock_vm_keeps_a_night_away_and_no_return(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path)
    hung(world)
    with pytest.raises(Locked, match="could not be written in 3 tries: gpuops-lock: another task is running on it"):
        run(world, RunKind.NIGHT, tmp_path)
    report = run(world, RunKind.DAY, tmp_path)
    assert report.exit_code == 0
    assert about_the_lock(report)[0].endswith("this machine's lock alone keeps other runs away")
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


@pytest.mark.long
@pytest.mark.parametrize("befalls", [hung, removed_lock_vm, unreadable, forbidden])
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


@pytest.mark.long
def test_a_return_without_its_lease_stops_when_another_takes_it(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path)
    resumed: list[Step] = []

    def stolen(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            raise NoPermission(f"{LOCK}: this login lacks VirtualMachine.Config.AdvancedConfig")
        world.now += timedelta(seconds=TTL_S)  # each step outlives the lease
        resumed.append(step)
        if len(resumed) == 2:
            other_lease = Lease("pid 7 on b", "abc", number(world) + 1, world.now + timedelta(seconds=TTL_S * 9))
            world.set("vm-99", extra_config={KEY: lease_text(other_lease)})

    def begins(step: Step) -> None:
        if not isinstance(step, ReconfigureVm):
            world.on_submit = stolen
            stolen(step)

    world.on_submit = begins
    with pytest.raises(Locked, match="pid 7 on b holds the lease"):
        run(world, RunKind.DAY, tmp_path)
    assert len(resumed) == 2


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("machine", ["a", "b"], ids=["by its journal", "by the markers"])
def test_a_lock_vm_that_was_reverted_is_refused_to_a_night_until_somebody_sets_it_right(
    world: World, tmp_path: Path, machine: str
) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    before = number(world)
    revert(world)
    acted, mine = acts(world), site(world, tmp_path / machine)
    knows = "this machine's journal" if machine == "a" else r"the marker of \S+"
    wrong = (
        f"lock_vm: {LOCK} carries no lease, {knows} has {before}: the VM was reverted to a snapshot or created again"
    )
    with pytest.raises(LeaseReverted, match=wrong) as refused:
        run(world, RunKind.NIGHT, tmp_path / machine)
    right_again = f"gpuops rotate unlock --id {before} --policy"
    assert refused.value.hint.startswith(f"make sure that no machine rotates, then: {right_again}")
    assert (acts(world), read_lease(world)) == (acted, None)
    assert "reverted" in status(mine, POLICY).lock_trouble
    with pytest.raises(LeaseReverted):
        unlock(POLICY, mine, None)
    with pytest.raises(LeaseReverted):
        unlock(POLICY, mine, str(before + 1))
    right = unlock(POLICY, mine, str(before))
    assert (right.nonce, right.epoch) == ("", before)
    assert status(mine, POLICY).lock_trouble == ""
    with pytest.raises(Refused, match="no run holds the lease"):
        unlock(POLICY, mine, str(before))
    assert run(world, RunKind.NIGHT, tmp_path / machine).exit_code == 0
    assert number(world) > before


@pytest.mark.long
@pytest.mark.parametrize("machine", ["a", "b"], ids=["by its journal", "by the markers"])
def test_a_return_goes_on_by_a_lock_vm_that_was_reverted_and_sets_its_number_right(
    world: World, tmp_path: Path, machine: str
) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    before = number(world)
    revert(world)
    report = run(world, RunKind.DAY, tmp_path / machine)
    assert report.exit_code == 0
    assert [text for text in report.plan.warnings if "reverted to a snapshot or created again" in text] != []
    now = read_lease(world)
    assert now is not None
    assert (now.nonce, now.epoch > before) == ("", True)
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


@pytest.mark.long
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


@pytest.mark.long
def test_of_marks_that_are_set_together_each_goes_by_a_look_of_its_own(world: World, tmp_path: Path) -> None:
    """The lock VM is reverted, and no time passes: only a look tells."""

    def strike(step: Step) -> None:
        if isinstance(step, SetAttribute):
            world.on_submit = lambda step: None
            revert(world)

    world.on_submit = strike
    with pytest.raises(Locked, match="the VM was reverted to a snapshot"):
        run(world, RunKind.NIGHT, tmp_path)
    assert sum(isinstance(effect.step, SetAttribute) for effect in world.ledger) == 1
    assert acts(world) == []


def test_unlock_gives_back_that_very_lease_and_no_other(world: World, tmp_path: Path) -> None:
    mine = site(world, tmp_path / "b")
    with pytest.raises(Refused, match="no run holds the lease"):
        unlock(POLICY, mine, None)
    taken_lease = take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    lease = read_lease(world)
    assert lease is not None
    with pytest.raises(Refused, match="holds the lease until") as refusal:
        unlock(POLICY, mine, "another")
    assert lease.nonce in refusal.value.hint
    assert status(mine, POLICY).lease == lease
    with pytest.raises(Locked, match="its run is alive, or died just now") as fresh:
        unlock(POLICY, mine, lease.nonce)
    assert fresh.value.hint.endswith(f"gpuops rotate unlock --id {lease.nonce} --force --policy FILE")
    assert read_lease(world) == lease
    assert unlock(POLICY, mine, lease.nonce, force=True) == lease
    assert status(mine, POLICY).lease is None
    world.now += timedelta(seconds=HEARTBEAT_S)
    assert "another run or user released it" in (taken_lease.objection() or "")
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    world.now += timedelta(seconds=HEARTBEAT_S + CALL_TIMEOUT_S + 2)
    stale = read_lease(world)
    assert stale is not None
    assert unlock(POLICY, mine, stale.nonce) == stale, "not renewed for longer than a heartbeat and a call"
    with pytest.raises(UsageError, match="has no lock_vm"):
        unlock(parse_policy(POLICY_TEXT, "plain"), mine, None)


@pytest.mark.long
def test_a_lease_that_was_planted_for_years_is_named_and_can_be_taken_away(world: World, tmp_path: Path) -> None:
    """A user who may write to the lock VM can prevent nights, until an admin looks."""
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


LEASE = '{"format":1,"owner":"a","nonce":"b","epoch":%s,"expires":"2026-01-01T00:00:00Z"}'


@pytest.mark.parametrize(
    "text", ["[" * 20_000, LEASE % "1e999", LEASE % "[]", "5", "null", "x"], ids=lambda text: text[:60]
)
def test_what_no_gpuops_wrote_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a value that this gpuops did not write"):
        parse_lease(text)
