"""Reverting to a snapshot: the VM's power is that of the snapshot, its custom values stay."""

from __future__ import annotations

import pytest

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.sim.lab import Lab


def revert(lab: Lab, name: str, to: str) -> None:
    happening = f"vm.reverted_to_{to}"
    vms = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == name]
    with lab.world.lock:
        OUTSIDE_EVENTS[happening].strike(lab.world, vms, Rule(Effect.HAPPEN, happening=happening))


@pytest.mark.parametrize("name", ["vdi-01", "vdi-11"], ids=["running", "suspended"])
def test_its_power_is_that_of_the_snapshot(lab: Lab, name: str) -> None:
    for to, power in (("off", "poweredOff"), ("suspended", "suspended"), ("running", "poweredOn")):
        revert(lab, name, to)
        assert lab.power(name) == power
    assert lab.seats(name), "it runs on a GPU again"


@pytest.mark.long
def test_its_suspended_state_is_that_of_the_snapshot(lab: Lab) -> None:
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    since = lab.vm("vdi-01").runtime.suspendTime
    revert(lab, "vdi-01", "suspended")
    assert lab.vm("vdi-01").runtime.suspendTime < since


def test_its_space_on_the_datastore_is_free_again(lab: Lab) -> None:
    free = lab.vm("vdi-01").datastore[0].summary.freeSpace
    revert(lab, "vdi-01", "suspended")
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace < free
    revert(lab, "vdi-01", "off")
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace == free


@pytest.mark.long
def test_one_whose_gpu_is_taken_meanwhile_stays_suspended(lab: Lab) -> None:
    lab.attach("ml-07", *["grid_a100-3-20c"] * 4)
    lab.power_on("ml-07")
    revert(lab, "ml-07", "suspended")
    lab.power_on("ml-01", "esx-01.lab")
    revert(lab, "ml-07", "running")
    assert lab.power("ml-07") == "suspended"


def test_a_vm_that_has_a_task_is_not_reverted(lab: Lab) -> None:
    task = lab.vm("vdi-11").PowerOnVM_Task()
    revert(lab, "vdi-11", "off")
    lab.run(task)
    assert lab.power("vdi-11") == "poweredOn"
