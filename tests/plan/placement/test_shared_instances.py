"""Three vGPUs that share GPU instances of an RTX PRO 6000 may hold one instance or three: answers say so, or refuse."""

from __future__ import annotations

from dataclasses import replace

from gpuops.model.devices.gpu import VgpuMode, VgpuPlacement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.placement.seating import Room
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from tests.plan.snapshots import FIRST, catalog, gpu, host, inventory, vm

PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"
DOUBT = "depends on where the running vGPUs start, which vCenter does not tell"


def world(*starts: int) -> Inventory:
    """Three VMs run, `big` is off and `back` is suspended; `starts` is what the host's nvidia-smi tells."""
    three = [vm(n, f"a-{n}", "1", f"vgpu {PREFIX}1-3q", power=PowerState.ON) for n in (1, 2, 3)]
    big = replace(vm(4, "big", "1", memory_mib=8192), power=PowerState.OFF)
    back = replace(vm(5, "back", "1", f"vgpu {PREFIX}2-48q", memory_mib=8192), power=PowerState.SUSPENDED)
    placements = tuple(
        VgpuPlacement(small_vm.ref, f"{PREFIX}1-3q", start) for small_vm, start in zip(three, starts, strict=False)
    )
    shared = replace(
        gpu(FIRST, "rtx-pro-6000", 0, VgpuMode.MULTI_INSTANCE),
        vms=tuple(small_vm.ref for small_vm in three),
        vgpus=placements or None,
    )
    return inventory([host("esx-1", shared)], [*three, big, back])


def free(snapshot: Inventory, profile: str) -> tuple[int, int | None]:
    [part] = capacity(snapshot, catalog()).now.parts
    slots = part.fits[f"{PREFIX}{profile}"].slots
    return slots.at_least, slots.at_most


def test_capacity_counts_what_is_free_however_they_lie() -> None:
    assert [free(world(), name) for name in ("2-48q", "1-24q", "1-3q")] == [(0, 1), (1, 3), (29, 29)]
    assert [free(world(0, 3, 6), name) for name in ("2-48q", "1-24q", "1-3q")] == [(0, 0), (1, 1), (29, 29)]
    assert free(world(0, 0, 0), "2-48q") == (1, 1)


def test_attach_warns_and_place_names_the_doubt() -> None:
    snapshot = world()
    plan = Attach("big", profile=f"{PREFIX}2-48q", power=PowerPolicy.ON).plan(snapshot, catalog(), snapshot.taken_at)
    assert plan.steps
    assert any(DOUBT in warning for warning in plan.warnings)
    requests = (Workload("new", 4, 8192, f"{PREFIX}2-48q"),)
    [placed] = Place(requests, suspended=SuspendedPolicy.IGNORE).placements(world(), catalog()).placed
    assert any(DOUBT in doubt for doubt in placed.placement.doubts)


def test_a_night_does_not_count_on_the_return_of_a_vm_that_may_find_no_instance() -> None:
    """`Room` with `certain` is what proves a return."""
    snapshot = world()
    [esx] = snapshot.hosts.values()
    [doubt] = Room(catalog(), certain=True).refusals(snapshot.find_vm("back"), esx, snapshot)
    assert DOUBT in str(doubt)
    with_known_slots = world(0, 0, 0)
    assert (
        Room(catalog(), certain=True).refusals(
            with_known_slots.find_vm("back"), with_known_slots.hosts[esx.ref], with_known_slots
        )
        == ()
    )
