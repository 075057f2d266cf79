"""Several VMs in one plan: each on what the ones before it leave, all or as many as can be, none held up needlessly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.errors import UsageError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.step_checks import is_satisfied
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.several import Change, SeveralVms
from gpuops.plan.vm.vm_blockers import PowerPolicy
from tests.plan.case import carried_out
from tests.plan.snapshots import SNAPSHOTS, TAKEN_AT, catalog


@pytest.fixture
def lab() -> Inventory:
    """The lab, and ten copies of ml-07, off and without a GPU."""
    lab = SNAPSHOTS["lab"]()
    pattern = lab.find_vm("ml-07")
    for number in range(10):
        lab = lab.with_vm(replace(pattern, ref=f"copy-{number}", name=f"copy-{number}", path="", instance_uuid=None))
    return lab


def plan(lab: Inventory, *requests: Change, partial: bool = False) -> Plan:
    return SeveralVms(requests, partial).plan(lab, catalog(), TAKEN_AT)


def test_vms_that_are_off_are_reconfigured_in_one_wave(lab: Inventory) -> None:
    requests = [Attach(f"copy-{number}", "a100-3-20c") for number in range(10)]
    several = plan(lab, *requests)
    (wave,) = several.waves
    assert (wave.title, len(wave.steps), several.disruptive) == ("reconfigure 10 VMs", 10, False)
    alone = [SeveralVms((request,)).plan(lab, catalog(), TAKEN_AT).steps for request in requests]
    assert list(wave.steps) == [step for steps in alone for step in steps], "the same steps as one by one"
    after = carried_out(several, lab)
    assert all(is_satisfied(step, after) for step in wave.steps)
    second_plan = plan(after, *requests)
    assert (second_plan.steps, second_plan.rejections, len(second_plan.because)) == ((), (), 10)


def test_each_sees_what_the_ones_before_it_take(lab: Inventory) -> None:
    # esx-01 has two A100 in MIG mode with room for four of 3g.20gb, of which ml-03 holds one
    requests = [Attach(f"copy-{number}", "a100-3-20c", power=PowerPolicy.ON) for number in range(5)]
    several = plan(lab, *requests)
    assert several.steps == ()
    assert {rejection.subject.partition(":")[0] for rejection in several.rejections} == {"copy-3", "copy-4"}
    partly = plan(lab, *requests, partial=True)
    assert partly.unmet == several.rejections
    assert {step.vm for step in partly.steps} == {"copy-0", "copy-1", "copy-2"}
    assert [wave.title for wave in partly.waves[:2]] == ["reconfigure copy-0", "start copy-0"], "each start by itself"


def test_what_one_gives_up_another_may_have(lab: Inventory) -> None:
    start = Attach("copy-0", "a100-7-40c", power=PowerPolicy.ON, host="esx-01")
    full = [Attach(f"copy-{number}", "a100-3-20c", power=PowerPolicy.ON) for number in range(1, 4)]
    world = carried_out(plan(lab, *full), lab)
    assert not plan(world, start).feasible
    freed = [Detach(f"copy-{number}", all=True, power=PowerPolicy.OFF) for number in range(1, 4)]
    assert plan(world, *freed, start).feasible
    assert not plan(world, start, *freed).feasible, "the order is the order in which they find their room"


def test_a_name_that_means_nothing_is_one_reason_among_others(lab: Inventory) -> None:
    requests = (Attach("copy-0", "a100-3-20c"), Attach("nobody", "a100-3-20c"), Attach("copy-1", "nonsense-9x"))
    several = plan(lab, *requests)
    assert [rejection.subject for rejection in several.rejections] == ["nobody", "copy-1"]
    assert several.steps == ()
    partly = plan(lab, *requests, partial=True)
    assert [step.vm for step in partly.steps] == ["copy-0"]
    assert len(partly.unmet) == 2
    nothing = plan(lab, requests[1], partial=True)
    assert (len(nothing.rejections), nothing.unmet) == (1, ()), "refused, not partly done"
    together = SeveralVms(requests)
    assert (together.vm_details(lab), together.config_targets(lab)) == ((), ())


def test_a_vm_is_named_once(lab: Inventory) -> None:
    with pytest.raises(UsageError, match="'copy-0' and 'moid:copy-0' are one VM"):
        plan(lab, Attach("copy-0", "a100-3-20c"), Detach("moid:copy-0", all=True))
