"""A lock VM that was reverted to a snapshot or made anew: its number is older than one that was given out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import LeaseReverted, Locked, Refused
from gpuops.execute.rotation.rotation_lock import unlock
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import ReconfigureVm, SetAttribute, Step
from tests.execute.lease.leased import LOCK, POLICY, acts, number, powers, read_lease, revert, run, site
from tests.execute.small_vcenter import World

pytestmark = pytest.mark.long


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
    assert refused.value.hint.startswith(f"when no gpuops rotates on any machine: {right_again}")
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


@pytest.mark.parametrize("machine", ["a", "b"], ids=["by its journal", "by the markers"])
def test_a_return_goes_on_by_a_lock_vm_that_was_reverted_and_sets_its_number_right(
    world: World, tmp_path: Path, machine: str
) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    before = number(world)
    revert(world)
    report = run(world, RunKind.DAY, tmp_path / machine)
    assert report.exit_code == 0
    assert [
        text for text in report.plan.warnings if "reverted to a snapshot or created again; its number" in text
    ] != []
    now = read_lease(world)
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
    assert sum(isinstance(effect.step, SetAttribute) for effect in world.ledger) == 1
    assert acts(world) == []
