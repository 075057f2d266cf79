"""A step is done when the snapshot shows it, and never when it does not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.errors import VmNotFound
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.step_checks import is_satisfied
from gpuops.plan.core.steps import (
    CloneVm,
    CreateVm,
    NewVgpu,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.placement.project import project
from tests.plan.snapshots import FIRST, catalog, lab

ML_07, ML_03, DESK_4 = "vm-7", "vm-3", "vm-24"
PROFILE = "grid_a100-3-20c"
CLONE = CloneVm("new:/dc/vm/new", "new", ML_07, "host-2", None, None, 2, 2048, settings={"gpuops.cluster": "v1"})


@pytest.mark.parametrize(
    "step",
    [
        ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),))),
        ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),), devices_after=(f"vgpu {PROFILE}",))),
        ReconfigureVm(ML_07, VmChange(extra_config={"a": "b"})),
        ReconfigureVm(ML_07, VmChange(memory_locked=True)),
        ReconfigureVm(ML_07, VmChange(memory_reservation_mib=512)),
        ReconfigureVm(ML_07, VmChange(cpu_hot_add=True)),
        ReconfigureVm(ML_07, VmChange(cores_per_numa_node=8)),
        ReconfigureVm(ML_03, VmChange(remove=(13000,))),
        ReconfigureVm(ML_03, VmChange(replace_profile=((13000, "grid_a100-2-10c"),))),
        RelocateVm(ML_07, "host-5"),
        PowerOnVm(ML_07),
        ResumeVm(DESK_4),
        SuspendVm(ML_03),
        PowerOffVm(ML_03),
        ShutDownGuest(ML_03),
        SetAttribute(ML_07, "owner", "ml"),
        PowerOffForRemoval(ML_03, "ml-03", "made"),
        RemoveVm(ML_07, "ml-07", "made"),
        CLONE,
        CreateVm("new:gpuops-lock", "gpuops-lock", "host-2", "esx-02", "ds-1", "carries the lease"),
    ],
    ids=str,
)
def test_every_step_is_open_before_and_done_after(step: Step) -> None:
    before = lab()
    assert not is_satisfied(step, before)
    assert is_satisfied(step, project(step, before, catalog()))


def test_another_vm_of_the_same_path_is_not_the_one_to_make() -> None:
    after_clone = project(CLONE, lab(), catalog())
    vm = after_clone.vm(CLONE.vm)
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, extra_config={"gpuops.cluster": "v1 of others"})))
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, template=True)))
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, path="/dc/vm/other/new")))
    assert is_satisfied(replace(CLONE, settings={}), after_clone.with_vm(replace(vm, extra_config=None)))


def test_a_pin_of_another_number_than_the_new_device_got_is_not_done() -> None:
    before = lab()
    step = ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),), extra_config={"pciPassthru0.cfg.gpu-pci-id": FIRST}))
    after = project(step, before, catalog())
    assert is_satisfied(step, after)
    vm = after.vm(ML_07)
    other_key = replace(vm, devices=tuple(replace(device, key=13001) for device in vm.devices or ()))
    assert not is_satisfied(step, after.with_vm(other_key))


def test_a_second_addition_is_not_taken_for_the_first() -> None:
    before = lab()
    second_addition = VmChange(add=(NewVgpu(PROFILE),), devices_after=(f"vgpu {PROFILE}", f"vgpu {PROFILE}"))
    assert not is_satisfied(ReconfigureVm(ML_03, second_addition), before)


def test_a_removed_key_that_vcenter_gives_out_again_is_not_mistaken() -> None:
    change = VmChange(remove=(13000,), add=(NewVgpu("grid_a100-2-10c"),), devices_after=("vgpu grid_a100-2-10c",))
    after = project(ReconfigureVm(ML_03, change), lab(), catalog())
    assert [device.key for device in after.vms[ML_03].devices or ()] == [13000]
    assert is_satisfied(ReconfigureVm(ML_03, change), after)


@pytest.mark.parametrize(
    "change",
    [
        VmChange(add=(NewVgpu(PROFILE),)),
        VmChange(remove=(13000,)),
        VmChange(extra_config={"a": ""}),
        VmChange(memory_locked=False),
        VmChange(cpu_hot_add=False),
        VmChange(cores_per_numa_node=0),
        VmChange(memory_reservation_mib=0),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_not_done(change: VmChange) -> None:
    world = lab()
    blind = replace(
        world.vms[ML_07],
        devices=None,
        extra_config=None,
        memory_locked=None,
        cpu_hot_add=None,
        cores_per_numa_node=None,
        memory_reservation_mib=None,
    )
    assert not is_satisfied(ReconfigureVm(ML_07, change), world.with_vm(blind))


def test_an_empty_value_means_the_key_is_gone() -> None:
    world = lab()
    removal = ReconfigureVm(ML_07, VmChange(extra_config={"a": ""}))
    assert is_satisfied(removal, world)
    assert not is_satisfied(removal, world.with_vm(replace(world.vms[ML_07], extra_config={"a": "b"})))


def test_a_suspended_vm_was_not_shut_down() -> None:
    assert not is_satisfied(ShutDownGuest(DESK_4), lab())
    assert not is_satisfied(PowerOffVm(DESK_4), lab())


def test_a_vm_that_is_gone_is_an_error() -> None:
    with pytest.raises(VmNotFound):
        is_satisfied(SuspendVm("vm-404"), lab())


def test_stopping_frees_the_gpu_and_starting_takes_one() -> None:
    world = lab()
    freed = project(SuspendVm(ML_03), world, catalog())
    assert freed.hosts["host-1"].gpus[0].vms == ()
    assert freed.vms[ML_03].power is PowerState.SUSPENDED
    back = project(ResumeVm(ML_03, "host-1"), freed, catalog())
    assert str(next(gpu.address for gpu in back.hosts["host-1"].gpus if ML_03 in (gpu.vms or ()))) == FIRST


def test_a_whole_gpu_is_bound_to_the_vm_that_runs_with_it() -> None:
    world = lab()
    stopped = project(PowerOffVm("vm-8"), world, catalog())
    assert stopped.hosts["host-4"].bindings == ()
    after_restart = project(PowerOnVm("vm-8"), stopped, catalog())
    assert [binding.vm for binding in after_restart.hosts["host-4"].bindings] == ["vm-8"]


def test_a_start_that_the_host_would_refuse_puts_the_vm_on_no_gpu() -> None:
    four = ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),) * 4))
    world = project(PowerOnVm(ML_07), project(four, lab(), catalog()), catalog())
    assert all(ML_07 not in (gpu.vms or ()) for gpu in world.hosts["host-1"].gpus)


@pytest.mark.parametrize(
    ("step", "reached"),
    [
        (PowerOnVm(ML_03), PowerState.ON),
        (ResumeVm(ML_03), PowerState.ON),
        (SuspendVm(ML_03), PowerState.SUSPENDED),
        (PowerOffVm(ML_03), PowerState.OFF),
        (ShutDownGuest(ML_03), PowerState.OFF),
    ],
    ids=str,
)
def test_one_power_state_alone_is_the_one_that_was_meant(step: Step, reached: PowerState) -> None:
    """A desktop that somebody powered off is not suspended: what its guest held is lost."""
    for power in (*PowerState, None):
        now = lab()
        assert is_satisfied(step, now.with_vm(replace(now.vms[ML_03], power=power))) is (power is reached)
