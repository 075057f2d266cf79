"""Every order in which VMs may come back to a host: none is too late, one is, or nobody can tell."""

from __future__ import annotations

from pytest_mock import MockerFixture

from gpuops.advise.occupancy import gpu_states
from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement import start_orders
from gpuops.plan.placement.start_orders import Late, too_late
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm


def back(*profiles: str) -> list[Vm]:
    return [vm(number, f"vm-{number}", "1", f"vgpu {profile}") for number, profile in enumerate(profiles, 1)]


def late(coming: list[Vm], mode: VgpuMode = VgpuMode.SAME_SIZE, board: str = "a40") -> Late | None:
    there = host("esx-1", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    assert there.assignment_policy is AssignmentPolicy.PERFORMANCE
    return too_late(coming, gpu_states(there, inventory([there], []), catalog()), there, catalog())


def test_alike_they_all_find_room_until_there_is_none() -> None:
    assert late(back(*["nvidia_a40-8q"] * 12)) is None
    found = late(back(*["nvidia_a40-8q"] * 13))
    assert found is not None
    assert (found.vm.name, len(found.after)) == ("vm-13", 12)


def test_small_ones_may_lock_every_gpu_before_a_large_one_comes() -> None:
    found = late(back("nvidia_a40-48q", "nvidia_a40-8q", "nvidia_a40-8q"))
    assert found is not None
    assert (found.vm.name, [each.name for each in found.after]) == ("vm-1", ["vm-2", "vm-3"])
    assert late(back("nvidia_a40-48q", "nvidia_a40-8q")) is None


def test_too_many_ways_are_no_proof(mocker: MockerFixture) -> None:
    coming = back("grid_a100-1-5c", "grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-1-10c")
    assert late(coming, VgpuMode.MULTI_INSTANCE, "a100") is None
    mocker.patch.object(start_orders, "_MOST", 3)
    found = late(coming, VgpuMode.MULTI_INSTANCE, "a100")
    assert found is not None
    assert found.unproven


def eight_alike(mocker: MockerFixture) -> tuple[Late | None, int]:
    """What comes of two VMs with six vGPUs on eight GPUs that are alike, and how many starts were tried for it."""
    gpus = [gpu(f"0000:{bus:02x}:00.0", "l40s", 0, VgpuMode.MIXED_SIZE) for bus in range(1, 9)]
    there = host("esx-1", *gpus)
    coming = [vm(number, f"vm-{number}", "1", *["vgpu nvidia_l40s-8q"] * 6) for number in (1, 2)]
    tried = mocker.spy(start_orders, "_with_vgpu")
    states = gpu_states(there, inventory([there], []), catalog())
    return too_late(coming, states, there, catalog(), whichever=True), tried.call_count


def test_gpus_that_are_alike_are_not_told_apart_while_one_vm_starts(mocker: MockerFixture) -> None:
    """Six vGPUs on eight GPUs may lie in 1,716 ways, of which 11 differ in more than which GPU has how many."""
    found, tried = eight_alike(mocker)
    assert found is None
    assert tried < 6000


def test_what_is_tried_for_one_vm_is_limited_too(mocker: MockerFixture) -> None:
    mocker.patch.object(start_orders, "_STARTS_A_WAY", 1)
    found, tried = eight_alike(mocker)
    assert found is not None
    assert (found.unproven, tried) == (True, 1000)
