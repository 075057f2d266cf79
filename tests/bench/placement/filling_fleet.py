"""Hosts on which VMs start as the simulator admits them, and the snapshot that a read of them would give.

Admission is the simulator's own (`gpuops.sim.state.gpu_admission`), without the wire, so that hundreds of fleets can be
filled; `test_filling.py` holds that a simulated vCenter at the other end of the wire comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.sim.state.board import GpuMode, board
from gpuops.sim.state.gpu_admission import (
    DOCUMENTED,
    Deviation,
    GpuLoad,
    NotAdmitted,
    RunningVgpu,
    VgpuPolicy,
    WantedVgpu,
    admit,
)
from tests.plan import snapshots
from tests.plan.snapshots import catalog

HOSTS: Final = 8
GPUS: Final = 8
VCPUS, MEMORY_MIB = 4, 16 * 1024
MODES: Final = {
    VgpuMode.SAME_SIZE: GpuMode.SAME_SIZE,
    VgpuMode.MIXED_SIZE: GpuMode.MIXED_SIZE,
    VgpuMode.MULTI_INSTANCE: GpuMode.MULTI_INSTANCE,
}


@dataclass(frozen=True, slots=True)
class FleetKind:
    """What the hosts have, and what is asked of them."""

    name: str
    board: str
    modes: tuple[VgpuMode, ...]
    """Of the GPUs of a host, in turn."""
    profiles: tuple[str, ...]
    """Drawn with equal chances; without the brand, `a40-8q`."""
    whole: str
    """The profile of a whole GPU, and the share of the VMs that ask for it."""
    whole_share: float
    several_share: float = 0.0
    """Of the others: VMs with two or four vGPUs."""
    whole_counts: tuple[int, ...] = (1,)
    """GPUs of a VM with whole GPUs, drawn with equal chances."""
    unlike: bool = False
    """The shares are drawn for each fleet, from a few percent to nearly all VMs."""
    weights: tuple[float, ...] = ()
    """The shares of `profiles`, then of `whole`, where they were drawn."""

    def drawn(self, seed: int) -> FleetKind:
        """The kind with the shares that a fleet of this seed has."""
        if not self.unlike or self.weights:
            return self
        random = Random(f"{self.name} shares {seed}")
        weights = [random.expovariate(1) for _ in (*self.profiles, self.whole)]
        return replace(self, weights=tuple(weight / sum(weights) for weight in weights))

    def size_mib(self, profile: str) -> int:
        facts = catalog().profile(profile)
        assert facts is not None, profile
        return facts.framebuffer_mib

    @property
    def memory_mib(self) -> int:
        board = catalog().board(self.board)
        assert board is not None, self.board
        return HOSTS * GPUS * board.framebuffer_mib

    def requests(self, seed: int) -> list[tuple[str, int]]:
        """Profiles and counts, until all memory of the fleet was asked for."""
        kind, random, remaining_mib = self.drawn(seed), Random(f"{self.name} {seed}"), self.memory_mib
        requests: list[tuple[str, int]] = []
        while True:
            profile, count = kind._draw_request(random)
            remaining_mib -= count * self.size_mib(profile)
            if remaining_mib < 0:
                return requests
            requests.append((profile, count))

    def _draw_request(self, random: Random) -> tuple[str, int]:
        if self.weights:
            return self.name_of(random.choices((*self.profiles, self.whole), self.weights)[0]), 1
        if random.random() < self.whole_share:
            return self.name_of(self.whole), random.choice(self.whole_counts) if len(self.whole_counts) > 1 else 1
        count = random.choice((2, 4)) if random.random() < self.several_share else 1
        return self.name_of(random.choice(self.profiles)), count

    def shares(self) -> dict[str, float]:
        """Of each profile among the VMs that are asked for."""
        if self.weights:
            return {
                self.name_of(name): weight
                for name, weight in zip((*self.profiles, self.whole), self.weights, strict=True)
            }
        other_share = (1 - self.whole_share) / len(self.profiles)
        return {self.name_of(self.whole): self.whole_share} | {
            self.name_of(profile): other_share for profile in self.profiles
        }

    @property
    def whole_memory_share(self) -> float:
        """The share of all memory asked for that VMs with a whole GPU ask for."""
        weighted_mib = {name: share * self.size_mib(name) for name, share in self.shares().items()}
        return weighted_mib[self.name_of(self.whole)] / sum(weighted_mib.values())

    def name_of(self, tail: str) -> str:
        board = catalog().board(self.board)
        assert board is not None, self.board
        return next(profile.name for profile in board.profiles if profile.name.partition("_")[2] == tail)


SAME, MIXED, MIG = VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE
_H100: Final = ("h100-1-10c", "h100-2-20c", "h100-3-40c", "h100-4-40c")
_A100: Final = ("a100-1-5c", "a100-2-10c", "a100-3-20c", "a100-4-20c")
_GRAPHICS: Final = ("4q", "6q", "8q", "12q", "16q", "24q")
FLEETS: Final = (
    FleetKind("H100 MIG", "h100", (MIG,), _H100, "h100-7-80c", 0.1),
    FleetKind("A100 MIG", "a100", (MIG,), _A100, "a100-7-40c", 0.1),
    FleetKind("L40S mixed size", "l40s", (MIXED,), tuple(f"l40s-{size}" for size in _GRAPHICS), "l40s-48q", 0.15),
    FleetKind("A40 mixed size", "a40", (MIXED,), tuple(f"a40-{size}" for size in _GRAPHICS), "a40-48q", 0.15),
    FleetKind("A16 same size", "a16", (SAME,), ("a16-1q", "a16-2q", "a16-4q", "a16-8q"), "a16-16q", 0.1),
    FleetKind("H100 half MIG", "h100", (MIG, SAME), (*_H100, "h100-10c", "h100-20c", "h100-40c"), "h100-80c", 0.1),
    FleetKind("H100 MIG, 1g.20gb", "h100", (MIG,), (*_H100, "h100-1-20c"), "h100-7-80c", 0.1),
    FleetKind("H100 MIG, unlike shares", "h100", (MIG,), (*_H100, "h100-1-20c"), "h100-7-80c", 0, unlike=True),
    FleetKind("A100 MIG, unlike shares", "a100", (MIG,), _A100, "a100-7-40c", 0, unlike=True),
    FleetKind(
        "L40S mixed size, unlike shares",
        "l40s",
        (MIXED,),
        tuple(f"l40s-{size}" for size in _GRAPHICS),
        "l40s-48q",
        0,
        unlike=True,
    ),
    FleetKind(
        "L40S same size, unlike shares",
        "l40s",
        (SAME,),
        ("l40s-4q", "l40s-8q", "l40s-12q", "l40s-24q"),
        "l40s-48q",
        0,
        unlike=True,
    ),
    FleetKind(
        "H100 half MIG, unlike shares",
        "h100",
        (MIG, SAME),
        (*_H100, "h100-10c", "h100-20c", "h100-40c"),
        "h100-80c",
        0,
        unlike=True,
    ),
)
SEVERAL: Final = (
    FleetKind(
        "L40S same size, several",
        "l40s",
        (SAME,),
        ("l40s-8q", "l40s-12q", "l40s-24q"),
        "l40s-48q",
        0.1,
        several_share=0.3,
    ),
    FleetKind("H100 whole GPUs", "h100", (SAME,), ("h100-40c",), "h100-80c", 1.0, whole_counts=(1, 2, 4, 8)),
    FleetKind(
        "A100 parts and whole hosts",
        "a100",
        (SAME,),
        ("a100-10c", "a100-20c"),
        "a100-40c",
        0.3,
        whole_counts=(1, 2, 4, 8),
    ),
)
"""Kinds with VMs that have several GPUs."""


class FillingFleet:
    """The hosts, what runs on them, and what a read would show. `starts`: the hosts tell where vGPUs start.

    `deviation`: what the hosts do otherwise than documented.
    """

    def __init__(
        self, kind: FleetKind, *, starts: bool, host_count: int = HOSTS, deviation: Deviation = DOCUMENTED
    ) -> None:
        self.kind, self.starts, self.deviation = kind, starts, deviation
        self.placed_mib = 0
        self._vms = 0
        self.loads: dict[str, tuple[GpuLoad, ...]] = {}
        hosts = [self._host(number) for number in range(1, host_count + 1)]
        self.seen: Inventory = snapshots.inventory(hosts, ())

    def _host(self, number: int) -> Host:
        addresses = [f"0000:{16 + 8 * at:02x}:00.0" for at in range(GPUS)]
        modes = [self.kind.modes[at % len(self.kind.modes)] for at in range(GPUS)]
        gpus = [
            snapshots.gpu(address, self.kind.board, at * 2 // GPUS, mode)
            for at, (address, mode) in enumerate(zip(addresses, modes, strict=True))
        ]
        new_host = snapshots.host(f"esx-{number:02}", *gpus)
        nodes = tuple(replace(node, logical_cpus=512, memory_mib=4 * 1024 * 1024) for node in new_host.numa_nodes)
        new_host = replace(
            new_host,
            cpu_cores=512,
            cpu_threads=1024,
            memory_mib=8 * 1024 * 1024,
            numa_nodes=nodes,
            assignment_policy=AssignmentPolicy.CONSOLIDATION,
        )
        board_there = board(self.kind.board)
        self.loads[new_host.ref] = tuple(
            GpuLoad(address, board_there, MODES[mode], serves_vgpus=True)
            for address, mode in zip(addresses, modes, strict=True)
        )
        return replace(new_host, gpus=tuple(self._gpu_shown(gpu, ()) for gpu in new_host.gpus))

    def power_on(self, vm: Vm, host: str, pins: Mapping[int, PciAddress]) -> tuple[RunningVgpu, ...] | NotAdmitted:
        """Starts the VM as its host admits it, and reads the host again."""
        wanted_vgpus = [WantedVgpu(name, str(pins[at]) if at in pins else None) for at, name in enumerate(vm.profiles)]
        self._vms += 1
        ref = f"vm-{self._vms}"
        seats = admit(ref, wanted_vgpus, self.loads[host], VgpuPolicy.CONSOLIDATION, self.deviation)
        if isinstance(seats, NotAdmitted):
            return seats
        self.placed_mib += sum(self.kind.size_mib(name) for name in vm.profiles)
        self.loads[host] = tuple(
            replace(load, seats=(*load.seats, *(seat for seat in seats if seat.pci_id == load.pci_id)))
            for load in self.loads[host]
        )
        running = replace(vm, ref=ref, instance_uuid=f"uuid-{ref}", host=host, power=PowerState.ON)
        self.seen = self.seen.with_hosts([self._read(host)]).with_vm(running)
        return seats

    def _read(self, host: str) -> Host:
        by_address = {load.pci_id: load for load in self.loads[host]}
        host_seen = self.seen.hosts[host]
        return replace(
            host_seen, gpus=tuple(self._gpu_shown(gpu, by_address[str(gpu.address)].seats) for gpu in host_seen.gpus)
        )

    def _gpu_shown(self, gpu: PhysicalGpu, seats: Sequence[RunningVgpu]) -> PhysicalGpu:
        placements = (
            tuple(VgpuPlacement(seat.vm, seat.type.name, seat.start) for seat in seats) if self.starts else None
        )
        return replace(gpu, vms=tuple(dict.fromkeys(seat.vm for seat in seats)), vgpus=placements)

    @property
    def filled(self) -> float:
        """Percent of the fleet's GPU memory that runs."""
        return 100 * self.placed_mib / self.kind.memory_mib
