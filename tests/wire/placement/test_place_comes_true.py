"""The VMs of a plan, made as its recipes say and started in orders that it allows, on the simulated vCenter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.config.requests_file import load_requests
from gpuops.execute.site import catalog_of
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, ResumeVm, Step
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Steering, recipe
from gpuops.plan.queue.place import Place, Placements
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.sim.lab import Lab, connect
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

TEMPLATE = Path(__file__).parents[3] / "templates" / "requests.yaml"


@pytest.fixture
def by_hand(lab: SimServer) -> Iterator[Lab]:
    """The same vCenter, for what gpuops does not do: making VMs."""
    si = connect(lab)
    yield Lab(lab.world, si)
    Disconnect(si)


def create_vm(placed: Placed, by_hand: Lab) -> str:
    """A VM of that size on that host, without devices; its ref."""
    config = vim.vm.ConfigSpec(numCPUs=placed.workload.vcpus, memoryMB=placed.workload.memory_mib)
    where = vim.vm.RelocateSpec(host=by_hand.host(placed.placement.host.name))
    model = by_hand.vm("ml-08")
    spec = vim.vm.CloneSpec(location=where, powerOn=False, template=False, config=config)
    vm = by_hand.run(model.CloneVM_Task(model.parent, placed.workload.name, spec))
    return str(vm._moId)


def perform_step(step: Step, connection: Connection) -> None:
    inventory = connection.inventory()
    task = connection.submit(step, connection.observe(inventory, [step.vm]), "test")
    assert task is not None
    (end,) = connection.wait([task], 600)
    assert end.error is None


def in_some_order(placements: Placements, random: Random) -> list[Placed]:
    """Those started in turn keep their order; all others may be anywhere."""
    listed = [placed for placed in placements.placed if placed.steering is Steering.LISTED_ORDER]
    order = [placed for placed in placements.placed if placed.steering is not Steering.LISTED_ORDER]
    random.shuffle(order)
    places = sorted(random.randrange(len(order) + 1) for _ in listed)
    for number, (place, placed) in enumerate(zip(places, listed, strict=True)):
        order.insert(place + number, placed)
    return order


@pytest.mark.parametrize(("pin", "seed"), mostly_long(product(PinPolicy, range(2)), [(PinPolicy.AUTO, 0)]))
def test_the_template_comes_true(lab: SimServer, by_hand: Lab, pin: PinPolicy, seed: int) -> None:
    workloads: Any = load_requests(TEMPLATE)
    if pin is PinPolicy.NEVER:
        workloads = tuple(workload for workload in workloads if workload.name != "train-a")  # `required` is pinned
    with Connection(target_of(lab)) as connection:
        request = Place(workloads, pin=pin)
        before = connection.inventory()
        before = connection.with_config_targets(before, request.config_targets(before))
        catalog = catalog_of(before)
        placements = request.placements(before, catalog)
        assert (placements.refused, placements.doubts) == ((), ())
        refs = {placed.workload.name: create_vm(placed, by_hand) for placed in placements.placed}
        for placed in in_some_order(placements, Random(seed)):
            ref = refs[placed.workload.name]
            perform_step(ReconfigureVm(ref, recipe(placed, catalog)), connection)
            perform_step(PowerOnVm(ref, placed.placement.host.ref), connection)
        # The desktop that is suspended meanwhile finds its GPU.
        (suspended,) = (claim.vm for claim in placements.claims)
        perform_step(ResumeVm(suspended.ref, suspended.host), connection)
        now = connection.inventory()
    for placed in placements.placed:
        host = now.hosts[placed.placement.host.ref]
        gpu_addresses = [gpu.address for gpu in host.gpus if refs[placed.workload.name] in (gpu.vms or ())]
        if placed.steering is Steering.PINNED:
            assert gpu_addresses == sorted(set(placed.placement.seats.values())), placed.workload.name
        assert now.vms[refs[placed.workload.name]].power == "poweredOn"


def test_the_ledger_shows_a_pinned_vm_on_its_gpu_and_node(lab: SimServer, by_hand: Lab) -> None:
    """Started last to first, against the policies of both hosts: `consolidation` would fill the GPU on node 0."""
    workloads = tuple(
        Workload(f"pinned-{n}", 8, 32768, profile, numa=NumaPolicy.REQUIRED)
        for n, profile in enumerate(("a100-3-20c", "a100-2-10c", "a100-3-20c", "a40-8q", "a100d-80c"))
    )
    with Connection(target_of(lab)) as connection:
        before = connection.inventory()
        catalog = catalog_of(before)
        placements = Place(workloads).placements(before, catalog)
        assert (placements.refused, placements.doubts) == ((), ())
        for placed in reversed(placements.placed):
            ref = create_vm(placed, by_hand)
            perform_step(ReconfigureVm(ref, recipe(placed, catalog)), connection)
            perform_step(PowerOnVm(ref, placed.placement.host.ref), connection)
    for placed in placements.placed:
        name, host = placed.workload.name, placed.placement.host
        (gpu,) = (gpu for gpu, _, _ in by_hand.seats(name))
        assert gpu == str(placed.placement.seats[0])
        extra_configs = [
            change.after["extra_config"]
            for change in lab.world.ledger
            if change.name == name
            if "extra_config" in change.after
        ]
        assert [extra_configs[-1]["numa.nodeAffinity"]] == [
            str(gpu_device.numa_node) for gpu_device in host.gpus if str(gpu_device.address) == gpu
        ]
