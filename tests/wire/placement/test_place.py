"""Places asked of a vCenter over the wire: nothing is written, nothing promised twice, and a power-on agrees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.api import place, run
from gpuops.execute.site import Site, catalog_of
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.plan.queue.test_place import after, find_overcommitment
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

Serve = Callable[[str], SimServer]


def site_of(connection: Connection, folder: Path) -> Site:
    return Site(connection, folder, lambda: datetime(2026, 11, 2, 18, tzinfo=UTC))


def many(inventory: Inventory) -> tuple[Workload, ...]:
    """More than fits: three of every fourth profile that is offered, and whole GPUs."""
    policies = list(NumaPolicy)
    vgpus = [
        Workload(f"{name} {copy}", 8, 32 * 1024, name, numa=policies[number % 3], spread=name)
        for number, name in enumerate(inventory.offered_profiles[::4])
        for copy in range(3)
    ]
    return (*vgpus, *(Workload(f"whole {copy}", 8, 32 * 1024, gpus=1) for copy in range(3)))


@pytest.mark.parametrize("scenario", mostly_long(["lab", "vdi", "fleet:hosts=40,vms=400"], ["lab", "vdi"]))
def test_a_full_house_is_never_oversold_and_nothing_is_written(serve: Serve, tmp_path: Path, scenario: str) -> None:
    server = serve(scenario)
    with Connection(target_of(server)) as connection:
        site = site_of(connection, tmp_path)
        request = Place(many(connection.inventory()), explain=True)
        placements = place(request, site)
        assert place(request, site).answers == placements.answers, "nothing changed, so the answer is the same"
    assert placements.placed
    assert placements.refused
    assert all(refusal.rejections for refusal in placements.refused)
    catalog = catalog_of(placements.before)
    then = after(placements, catalog)
    assert find_overcommitment(then, placements) == []
    assert list(server.world.ledger) == []


def shape(vm: Vm, inventory: Inventory) -> Workload:
    """What would be asked if this VM did not exist yet, on its host."""
    host = inventory.host_of(vm)
    assert host is not None
    assert vm.vcpus is not None
    assert vm.memory_mib is not None
    (profile,) = vm.profiles
    return Workload(vm.name, vm.vcpus, vm.memory_mib, profile, numa=NumaPolicy.NONE, host=host.name)


@pytest.mark.parametrize("scenario", mostly_long(["lab", "vdi"], ["lab"]))
def test_a_power_on_ends_on_the_gpu_that_was_foreseen(serve: Serve, tmp_path: Path, scenario: str) -> None:
    with Connection(target_of(serve(scenario))) as connection:
        site = site_of(connection, tmp_path)
        before = connection.inventory()
        off = [vm for vm in before.vms.values() if vm.power is PowerState.OFF and len(vm.profiles) == 1]
        shapes = tuple(shape(vm, before) for vm in off)
        placements = place(Place(shapes, pin=PinPolicy.NEVER, suspended=SuspendedPolicy.IGNORE), site)
        assert placements.placed
        for answer in placements.answers:
            vm = before.find_vm(answer.workload.name)
            request = Attach(vm=f"moid:{vm.ref}", profile=vm.profiles[0], power=PowerPolicy.ON, numa=NumaPolicy.NONE)
            report = run(request, site, apply=True)
            assert report.plan.feasible is (answer in placements.placed), (vm.name, report.plan.rejections)
        now = connection.inventory()
    for answer in placements.placed:
        vm = now.find_vm(answer.workload.name)
        host = now.host_of(vm)
        assert host is not None
        assert [gpu.address for gpu in host.gpus if vm.ref in (gpu.vms or ())] == list(answer.placement.seats.values())
