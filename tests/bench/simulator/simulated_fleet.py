"""A simulated vCenter in this process, on whose hosts VMs are made, started and removed as `place` says.

Only the making of VMs is by hand; devices, settings and power go over the wire, as `attach` and the rotation send them.
What became of a VM is read from the ledger alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.task import TaskEnd
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ReconfigureVm, Step
from gpuops.plan.queue.one_workload import Placed, recipe
from gpuops.sim.inventory.managed_entity import enter, leave, new_moid, new_uuid
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


@dataclass(frozen=True, slots=True)
class Seated:
    """What the ledger says of a VM that was started."""

    name: str
    gpus: tuple[str, ...]
    nodes: frozenset[int]
    """NUMA nodes of the GPUs that its host really gave it."""
    bound_to: frozenset[int]
    """Nodes that `numa.nodeAffinity` binds it to; empty = none."""


@dataclass
class SimulatedFleet:
    """Hosts of eight GPUs of one model, and the VMs on them."""

    world: World
    connection: Connection
    catalog: Catalog
    seen: Inventory
    """All that runs, read anew where something was done."""

    def start(self, placed: Sequence[Placed]) -> list[Seated]:
        """Makes the VMs and powers them on in this order. A power-on that is refused fails."""
        before = len(self.world.ledger)
        refused, refs = self._started(placed)
        assert not refused, refused
        return [self._seated(ref, before) for ref in refs]

    def refusals(self, placed: Sequence[Placed]) -> list[str]:
        """Makes the VMs and powers them on in this order: why each power-on that was refused was."""
        return self._started(placed)[0]

    def _started(self, placed: Sequence[Placed]) -> tuple[list[str], list[str]]:
        """Why power-ons were refused, and the refs of all the VMs."""
        refs = {each.workload.name: self._made(each) for each in placed}
        self._look(refs.values())
        self._done([ReconfigureVm(refs[each.workload.name], recipe(each, self.catalog)) for each in placed])
        self._look(refs.values())
        ends = self._ends([PowerOnVm(refs[each.workload.name], each.placement.host.ref) for each in placed])
        self._look(refs.values())
        return [str(end.error) for end in ends if end.error is not None], list(refs.values())

    def remove(self, names: Sequence[str]) -> None:
        """Powers the VMs off and takes them away."""
        vms = [vm for vm in self.world.by_type("VirtualMachine") if vm.name in set(names)]
        self._done([PowerOffVm(vm.moid) for vm in vms])
        self._look(vm.moid for vm in vms)
        with self.world.lock:
            for vm in vms:
                leave(vm)
        self._look(vm.moid for vm in vms)

    def _made(self, placed: Placed) -> str:
        workload = placed.workload
        with self.world.lock:
            state = next(vm for vm in self.world.by_type("VirtualMachine") if vm.name == "model").state
            made = replace(
                state,
                name=workload.name,
                uuid=new_uuid(self.world),
                instance_uuid=new_uuid(self.world),
                host=placed.placement.host.ref,
                cpus=workload.vcpus,
                memory_mib=workload.memory_mib,
                extra_config=(),
            )
            return enter(VirtualMachine(self.world, new_moid(self.world, "vm"), made)).moid

    def _look(self, refs: Iterable[str]) -> None:
        self.seen = self.connection.observe(self.seen, list(refs))

    def _done(self, steps: Sequence[Step]) -> None:
        for end in self._ends(steps):
            assert end.error is None, end

    def _ends(self, steps: Sequence[Step]) -> list[TaskEnd]:
        tasks = [self.connection.submit(step, self.seen, f"bench-{number}") for number, step in enumerate(steps)]
        return list(self.connection.wait([task for task in tasks if task is not None], 3600))

    def _seated(self, ref: str, since: int) -> Seated:
        told: dict[str, Any] = {}
        for entry in islice(self.world.ledger, since, None):
            if entry.moid == ref:
                told |= entry.after
        gpus = tuple(seat["gpu"] for seat in told["gpus"])
        bound = str(told.get("extra_config", {}).get("numa.nodeAffinity", ""))
        return Seated(
            self.world.get(ref).name,
            gpus,
            frozenset(NODE_OF[gpu] for gpu in gpus),
            frozenset(int(node) for node in bound.split(",") if node),
        )


@contextmanager
def simulated_fleet(hosts: int, mode: str, policy: str, board: str = "a100") -> Iterator[SimulatedFleet]:
    """So many hosts with nothing on them: 128 cores and 768 GiB in two nodes each."""
    world = build_declared(_declared(hosts, mode, policy, board))
    with SimServer(world, tls=False) as server:
        target = Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)
        with Connection(target) as connection:
            yield SimulatedFleet(world, connection, catalog(), connection.inventory())


def _declared(hosts: int, mode: str, policy: str, board: str) -> ScenarioFile:
    server = {"vendor": "Any", "model": "Any", "cpu": "Any", "cores_per_socket": 64, "threads_per_core": 1}
    gpus = [{"board": board, "at": at, "node": node, "mode": mode} for at, node in NODE_OF.items()]
    there = {"name": "esx-{:03}", "count": hosts, "group": "gpu", "model": "server", "driver": "550.90.05"}
    return ScenarioFile.of(
        {
            "description": "A fleet for measuring",
            "start": "2026-11-02T18:00:00Z",
            "datacenter": "dc",
            "models": {"server": {**server, "cpu_mhz": 2000, "memory_gib": 768}},
            "guests": {"ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu Linux (64-bit)"}},
            "datastores": [{"name": "ds", "capacity_gib": 10**6, "free_gib": 10**6}],
            "networks": ["VM Network"],
            "clusters": [{"name": "cluster", "hosts": [{**there, "policy": policy, "gpus": gpus}]}],
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
