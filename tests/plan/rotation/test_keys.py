"""Four keys, and only all of them together take a desktop: the policy, its owner, no opt-out, and vCenter's leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gpuops.model.nights.selector import Mark, Selector
from gpuops.plan.core.privileges import needed_privileges, refused_without
from tests.execute.small_vcenter import small_world
from tests.plan.rotation.test_night import POLICY, POOL, plan, refs_suspended

CELLS = list(product([True, False], repeat=4))
SUSPEND = "VirtualMachine.Interact.Suspend"


@pytest.mark.parametrize(("selected", "agreed", "opted_out", "permitted"), CELLS)
def test_one_cell_of_sixteen_may_suspend(selected: bool, agreed: bool, opted_out: bool, permitted: bool) -> None:
    chosen = Selector(name="desktop-*" if selected else "laptop-*")
    policy = replace(POLICY, pools=(replace(POOL, select=chosen, owner=Mark("gpuops.owner", "cad")),))
    world = small_world()
    for ref in world.vms:
        marks = ({"gpuops.owner": "cad"} if agreed else {}) | ({"gpuops.opt-out": "no"} if opted_out else {})
        world.set(ref, attributes=marks)
    # one whose owner agreed and whose user did not: without any, the whole pool would be refused before we come to ask
    world.set("vm-5", attributes={"gpuops.owner": "cad", "gpuops.opt-out": "no"})
    night_plan = plan(world, policy)
    wants = needed_privileges(night_plan.steps)
    lacking = {} if permitted else {vm: {SUSPEND} & privileges for vm, privileges in wants.items()}
    taken_refs = refs_suspended(refused_without(night_plan, lacking, world.snapshot()))
    assert bool(taken_refs) is ((selected, agreed, opted_out, permitted) == (True, True, False, True))
