"""Desktops come back in an order in which all of them fit, by canary, host and profile."""

from __future__ import annotations

from dataclasses import replace

from gpuops.model.nights.rotation import MorningOrder
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ResumeVm
from tests.execute.small_vcenter import desktop, small_world
from tests.plan.rotation.returns.morning import NIGHT, POLICY, plan


def resumed_refs(day: Plan) -> list[str]:
    return [step.vm for step in day.steps if isinstance(step, ResumeVm)]


def test_a_canary_of_each_host_comes_first_and_the_order_on_each_host_is_kept() -> None:
    """A host that takes none back shows at its first; the order in which all of them fit starts with that one."""
    world = small_world()
    world.vms["vm-7"] = desktop(7, "nvidia_a40-24q", "host-2")
    for ref in ("vm-1", "vm-2", "vm-3", "vm-4", "vm-5", "vm-7"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    canary, plainly = (plan(world, policy=replace(POLICY, morning=order)) for order in MorningOrder)
    assert [step.vm for step in canary.waves[0].steps] == ["vm-1", "vm-7"]
    for host in ("host-1", "host-2"):
        on_host = {step.vm for step in plainly.steps if isinstance(step, ResumeVm) and step.host == host}
        assert [ref for ref in resumed_refs(canary) if ref in on_host] == [
            ref for ref in resumed_refs(plainly) if ref in on_host
        ]


def test_a_profile_that_has_its_gpu_lets_the_others_claim_theirs_first() -> None:
    world = small_world()
    for ref in ("vm-2", "vm-3", "vm-4", "vm-5"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    assert resumed_refs(plan(world)) == ["vm-3", "vm-2", "vm-4", "vm-5"]
