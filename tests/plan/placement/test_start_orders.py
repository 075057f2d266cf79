"""Every order in which VMs may come back to a host: no VM is too late, one is, or it is unknown."""

from __future__ import annotations

from pytest_mock import MockerFixture

from gpuops.advise.occupancy import gpu_states
from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement import start_orders
from gpuops.plan.placement.start_orders import LateVm, find_late_vm
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm


def back(*profiles: str) -> list[Vm]:
    return [vm(number, f"vm-{number}", "1", f"vgpu {profile}") for number, profile in enumerate(profiles, 1)]


def late(coming: list[Vm], mode: VgpuMode = VgpuMode.SAME_SIZE, board: str = "a40") -> LateVm | None:
    esx = host("esx-1", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    assert esx.assignment_policy is AssignmentPolicy.PERFORMANCE
    return find_late_vm(coming, gpu_states(esx, inventory([esx], []), catalog()), esx, catalog())


def test_alike_they_all_find_room_until_there_is_none() -> None:
    assert late(back(*["nvidia_a40-8q"] * 12)) is None
    late_return = late(back(*["nvidia_a40-8q"] * 13))
    assert late_return is not None
    assert (late_return.vm.name, len(late_return.after)) == ("vm-13", 12)


def test_small_ones_may_lock_every_gpu_before_a_large_one_comes() -> None:
    late_return = late(back("nvidia_a40-48q", "nvidia_a40-8q", "nvidia_a40-8q"))
    assert late_return is not None
    assert (late_return.vm.name, [earlier_vm.name for earlier_vm in late_return.after]) == ("vm-1", ["vm-2", "vm-3"])
    assert late(back("nvidia_a40-48q", "nvidia_a40-8q")) is None


def test_too_many_ways_are_no_proof(mocker: MockerFixture) -> None:
    coming = back("grid_a100-1-5c", "grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-1-10c")
    assert late(coming, VgpuMode.MULTI_INSTANCE, "a100") is None
    mocker.patch.object(start_orders, "_MAX_WAYS", 3)
    late_return = late(coming, VgpuMode.MULTI_INSTANCE, "a100")
    assert late_return is not None
    assert late_return.unproven


def eight_alike(mocker: MockerFixture) -> tuple[LateVm | None, int]:
    """What comes of two VMs with six vGPUs on eight GPUs that are alike, and how many starts were tried for it."""
    gpus = [gpu(f"0000:{bus:02x}:00.0", "l40s", 0, VgpuMode.MIXED_SIZE) for bus in range(1, 9)]
    esx = host("esx-1", *gpus)
    coming = [vm(number, f"vm-{number}", "1", *["vgpu nvidia_l40s-8q"] * 6) for number in (1, 2)]
    tried = mocker.spy(start_orders, "_with_vgpu")
    states = gpu_states(esx, inventory([esx], []), catalog())
    return find_late_vm(coming, states, esx, catalog(), any_gpu=True), tried.call_count


def test_gpus_that_are_alike_are_not_told_apart_while_one_vm_starts(mocker: MockerFixture) -> None:
    """Six vGPUs on eight GPUs may lie in 1,716 ways, of which 11 differ in more than which GPU has how many."""
    late_return, tried = eight_alike(mocker)
    assert late_return is None
    assert tried < 6000


def test_what_is_tried_for_one_vm_is_limited_too(mocker: MockerFixture) -> None:
    mocker.patch.object(start_orders, "_STARTS_PER_WAY", 1)
    late_return, tried = eight_alike(mocker)
    assert late_return is not None
    assert (late_return.unproven, tried) == (True, 1000)
