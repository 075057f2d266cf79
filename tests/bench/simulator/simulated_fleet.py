"""A simulated vCenter in this process, on whose hosts VMs are created and started as `place` says.

Only the creation of VMs bypasses the wire; devices, settings and power go over it, as `attach` and the rotation send
them. What became of a VM is read from the ledger alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.task import TaskEnd
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, Step
from gpuops.plan.queue.one_workload import Placed, recipe
from gpuops.sim.inventory.managed_entity import enter, new_moid, new_uuid
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.plan.snapshots import catalog

GPUS: Final = 8
NODE_OF: Final = {f"0000:{16 + 8 * at:02x}:00.0": at * 2 // GPUS for at in range(GPUS)}
"""Four GPUs beside each of two nodes, by PCI address."""


@dataclass
class SimulatedFleet:
    """Hosts of eight GPUs of one model, and the VMs on them."""

    world: World
    connection: Connection
    catalog: Catalog
    seen: Inventory
    """All that runs, read anew where something was done."""

    def start(self, placed: Placed) -> tuple[str, ...]:
        """Create a VM, power it on, and return the PCI addresses of the GPUs that its host gave it."""
        before = len(self.world.ledger)
        refusals = self.refusals([placed])
        assert not refusals, refusals
        gpus = [entry.after["gpus"] for entry in islice(self.world.ledger, before, None) if "gpus" in entry.after]
        return tuple(seat["gpu"] for seat in gpus[-1])

    def refusals(self, placed: Sequence[Placed]) -> list[str]:
        """Create the VMs and power them on in this order; return the reason for each power-on that was refused."""
        refs = {placed_vm.workload.name: self._create_vm(placed_vm) for placed_vm in placed}
        self._look(refs.values())
        for end in self._ends(
            [ReconfigureVm(refs[placed_vm.workload.name], recipe(placed_vm, self.catalog)) for placed_vm in placed]
        ):
            assert end.error is None, end
        self._look(refs.values())
        ends = self._ends(
            [PowerOnVm(refs[placed_vm.workload.name], placed_vm.placement.host.ref) for placed_vm in placed]
        )
        self._look(refs.values())
        return [str(end.error) for end in ends if end.error is not None]

    def _create_vm(self, placed: Placed) -> str:
        workload = placed.workload
        with self.world.lock:
            state = next(vm for vm in self.world.by_type("VirtualMachine") if vm.name == "model").state
            vm_state = replace(
                state,
                name=workload.name,
                uuid=new_uuid(self.world),
                instance_uuid=new_uuid(self.world),
                host=placed.placement.host.ref,
                cpus=workload.vcpus,
                memory_mib=workload.memory_mib,
                extra_config=(),
            )
            return enter(VirtualMachine(self.world, new_moid(self.world, "vm"), vm_state)).moid

    def _look(self, refs: Iterable[str]) -> None:
        self.seen = self.connection.observe(self.seen, list(refs))

    def _ends(self, steps: Sequence[Step]) -> list[TaskEnd]:
        tasks = [self.connection.submit(step, self.seen, f"bench-{number}") for number, step in enumerate(steps)]
        return list(self.connection.wait([task for task in tasks if task is not None], 3600))


@contextmanager
def simulated_fleet(hosts: int, mode: str, policy: str, board: str = "a100") -> Iterator[SimulatedFleet]:
    """So many hosts with nothing on them: 128 cores and 768 GiB in two nodes each."""
    world = build_declared(_declare_fleet(hosts, mode, policy, board))
    with SimServer(world, tls=False) as server:
        target = Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)
        with Connection(target) as connection:
            yield SimulatedFleet(world, connection, catalog(), connection.inventory())


def _declare_fleet(hosts: int, mode: str, policy: str, board: str) -> ScenarioFile:
    server = {"vendor": "Any", "model": "Any", "cpu": "Any", "cores_per_socket": 64, "threads_per_core": 1}
    gpus = [{"board": board, "at": at, "node": node, "mode": mode} for at, node in NODE_OF.items()]
    host_group = {"name": "esx-{:03}", "count": hosts, "group": "gpu", "model": "server", "driver": "550.90.05"}
    return ScenarioFile.of(
        {
            "description": "A fleet for measuring",
            "start": "2026-11-02T18:00:00Z",
            "datacenter": "dc",
            "models": {"server": {**server, "cpu_mhz": 2000, "memory_gib": 768}},
            "guests": {"ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu Linux (64-bit)"}},
            "datastores": [{"name": "ds", "capacity_gib": 10**6, "free_gib": 10**6}],
            "networks": ["VM Network"],
            "clusters": [{"name": "cluster", "hosts": [{**host_group, "policy": policy, "gpus": gpus}]}],
            "vms": [
                {
                    "name": "model",
                    "folder": "ml",
                    "on": "gpu",
                    "guest": "ubuntu",
                    "cpus": 1,
                    "memory_gib": 1,
                    "disk_gib": 1,
                    "hardware_version": 21,
                },
            ],
        }
    )
