"""What holds whatever is changed: more hosts place no fewer requests that are all alike, and seeds repeat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpuops.extras.sizing.what_if.question import WhatIf, WhatIfAnswer
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.fleet_change import AddHosts, AddVms, LoseHost
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from tests.plan import snapshots

pytestmark = pytest.mark.long

SIZES = (4, 8, 12, 16, 24, 48)


@some.composite
def fleets(draw: some.DrawFn) -> Inventory:
    """One to three hosts of one to three A40, each in some mode with some VMs of one size."""
    hosts, vms = [], []
    for number in range(1, draw(some.integers(1, 3)) + 1):
        addresses = [snapshots.FIRST, snapshots.SECOND, snapshots.THIRD][: draw(some.integers(1, 3))]
        modes = (VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE)
        gpus = [snapshots.gpu(gpu_address, "a40", 0, draw(some.sampled_from(modes))) for gpu_address in addresses]
        host = snapshots.host(f"esx-{number}", *gpus)
        for index, address in enumerate(addresses):
            size = draw(some.sampled_from(SIZES))
            refs = [f"vm-{number}{index}{slot}" for slot in range(draw(some.integers(0, 2)) if size < 24 else 0)]
            vms += [
                snapshots.vm(int(ref[3:]), f"d{ref[3:]}", str(number), f"vgpu nvidia_a40-{size}q", power=PowerState.ON)
                for ref in refs
            ]
            host = snapshots.on_gpu(host, address, *refs)
        hosts.append(host)
    return snapshots.inventory(hosts, vms)


def alike(size: int, number: int) -> tuple[Workload, ...]:
    return tuple(Workload(f"r{index}", 1, 2048, profile=f"a40-{size}q") for index in range(number))


def answer(question: WhatIf, world: Inventory) -> WhatIfAnswer:
    return question.answer(world, snapshots.catalog())


@settings(max_examples=10, deadline=None)
@given(fleets(), some.sampled_from(SIZES), some.integers(1, 2), some.sampled_from(["a40", "l40s"]))
def test_more_hosts_place_no_fewer_requests_that_are_alike(world: Inventory, size: int, count: int, board: str) -> None:
    outcome = answer(WhatIf((AddHosts(count, board, 2, "esx-1"),), alike(size, 24)), world)
    [now], [then] = outcome.now.requests, outcome.then.requests
    assert then.placed >= now.placed
    assert (now.placed + len(now.waiting), then.placed + len(then.waiting)) == (24, 24)
    if board == "l40s":
        assert then.placed == now.placed, "no request asks for its GPUs"


@settings(max_examples=10, deadline=None)
@given(fleets(), some.sampled_from(SIZES))
def test_a_host_that_is_lost_and_added_again_changes_nothing_where_it_is_empty(world: Inventory, size: int) -> None:
    empty = snapshots.host("esx-9", snapshots.gpu(snapshots.FIRST, "a40"), snapshots.gpu(snapshots.SECOND, "a40"))
    world = world.with_hosts([empty])
    outcome = answer(WhatIf((LoseHost("esx-9"), AddHosts(1, like="esx-9")), alike(size, 24)), world)
    assert outcome.then.requests[0].placed == outcome.now.requests[0].placed
    figures = [(side.hosts, side.gpus, side.gpu_memory_mib, side.running) for side in (outcome.now, outcome.then)]
    assert figures[0] == figures[1]


@settings(max_examples=5, deadline=None)
@given(fleets(), some.integers(1, 3))
def test_seeds_repeat(world: Inventory, seeds: int) -> None:
    profiles = sorted({profile for vm in world.vms.values() for profile in vm.profiles})
    added_vms = (AddVms(3, profiles[0]),) if profiles else ()
    question = WhatIf((AddHosts(1, "a40", 1), *added_vms), (), 12, seeds)
    assert answer(question, world) == answer(question, world)


@settings(max_examples=10, deadline=None)
@given(fleets())
def test_whoever_ran_runs_again_or_is_named(world: Inventory) -> None:
    outcome = answer(WhatIf((LoseHost("esx-1"),), alike(8, 1)), world)
    ran = {vm.ref for vm in world.vms.values() if vm.power is PowerState.ON}
    fleet = outcome.then.fleet
    runs = {vm.ref for vm in fleet.inventory.vms.values() if vm.power is PowerState.ON}
    assert runs | {stranded_vm.vm.ref for stranded_vm in fleet.stranded} == ran
    assert not runs & {stranded_vm.vm.ref for stranded_vm in fleet.stranded}
    dead = fleet.inventory.find_host("esx-1")
    assert not [vm for vm in fleet.inventory.vms_on(dead) if vm.ref in runs]
