"""Measures how much of the free GPU memory VMs cannot use, because it is split over GPUs that have no slot for them.

F is the measure of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): the free memory that a VM cannot use,
averaged over the VMs of the vCenter. A VM can use the free memory of a GPU if the GPU has a slot for its profile.

Example: of two A40 with 48 GiB, one runs one vGPU of 8 GiB in same-size mode and one is empty. Half of the VMs have a
profile of 8 GiB, which both GPUs take, half one of 24 GiB, which only the empty GPU takes. F is half of 40 GiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuops.advise.occupancy import GpuState, Rooms, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

ProfileCounts = Mapping[str, Mapping[str, int]]
"""By the key of a board: how many VMs have each of its profiles."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The free memory of GPUs that serve vGPUs, all of one model or of several."""

    model: str
    gpus: int
    """GPUs with free memory."""
    free_mib: int
    fragmented_mib: float
    """F: the free memory that a VM cannot use, averaged over the VMs."""
    unusable_gpus: int | None
    """GPUs with free memory that have no slot for any waiting VM; None = no VM waits for this model."""

    @property
    def percent(self) -> float:
        """F as a share of the free memory."""
        return 100 * self.fragmented_mib / self.free_mib if self.free_mib else 0.0


class FragmentationMeasure:
    """Measures GPUs by the VMs of one snapshot. GPUs that are alike are judged once."""

    def __init__(self, inventory: Inventory, catalog: Catalog) -> None:
        vms = [vm for vm in inventory.vms.values() if vm.profiles and vm.template is not True]
        self._inventory, self._catalog = inventory, catalog
        self._rooms = Rooms(catalog)
        self.demand = _count_profiles(vms, catalog)
        self.waiting = _count_profiles([vm for vm in vms if not vm.may_run], catalog)

    def of_hosts(self, hosts: Iterable[Host]) -> tuple[Fragmentation, ...]:
        """Return the fragmentation of these hosts for each GPU model, by name.

        Hosts that are in maintenance mode or not connected are left out.
        """
        by_model: dict[tuple[str, str], list[GpuState]] = {}
        for host in hosts:
            if host.connected is True and host.in_maintenance is False:
                for state in gpu_states(host, self._inventory, self._catalog):
                    if self.free_mib(state):
                        by_model.setdefault((state.gpu.name, self.board_key(state)), []).append(state)
        return tuple(
            Fragmentation(
                model=name,
                gpus=len(states),
                free_mib=sum(map(self.free_mib, states)),
                fragmented_mib=sum(self.free_mib(state) * self.unusable_share(state) for state in states),
                unusable_gpus=sum(not self.takes_waiting(state) for state in states) if board in self.waiting else None,
            )
            for (name, board), states in sorted(by_model.items())
        )

    def free_mib(self, state: GpuState) -> int:
        """Return the memory that no vGPU on the GPU has; 0 if it is not known, or the GPU serves no vGPUs."""
        holders = [self._catalog.profile(holder) for holder in state.holders or ()]
        if state.unclear or not state.gpu.serves_vgpus or state.gpu.memory_mib is None or None in holders:
            return 0
        used_mib = sum(profile.framebuffer_mib for profile in holders if profile is not None)
        return max(0, state.gpu.memory_mib - used_mib)

    def unusable_share(self, state: GpuState) -> float:
        """Return the share of the VMs with this model for which the GPU has no slot; 0 if no VM has the model."""
        demand = self.demand.get(self.board_key(state), {})
        vms = sum(demand.values())
        return self._count_without_slot(state, demand) / vms if vms else 0.0

    def takes_waiting(self, state: GpuState) -> bool:
        """Return whether the GPU has a slot for a VM that waits."""
        waiting = self.waiting.get(self.board_key(state), {})
        return self._count_without_slot(state, waiting) < sum(waiting.values())

    def board_key(self, state: GpuState) -> str:
        """Return the key of the GPU's model; empty if the catalogue does not have it."""
        board = self._catalog.board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
        return board.key if board is not None else ""

    def _count_without_slot(self, state: GpuState, demand: Mapping[str, int]) -> int:
        """Return how many of these VMs have a profile for which the GPU has no certain slot."""
        slots = self._rooms.on(state, tuple(sorted(demand)))
        return sum(vms for profile, vms in demand.items() if profile not in slots or not slots[profile].at_least)


def measure_fragmentation(hosts: Iterable[Host], inventory: Inventory, catalog: Catalog) -> tuple[Fragmentation, ...]:
    """Return the fragmentation of these hosts for each GPU model, by name. The VMs are those of the whole snapshot."""
    return FragmentationMeasure(inventory, catalog).of_hosts(hosts)


def sum_of_models(models: Iterable[Fragmentation]) -> Fragmentation:
    """Return the sum over GPU models."""
    parts = tuple(models)
    unusable = [part.unusable_gpus for part in parts if part.unusable_gpus is not None]
    return Fragmentation(
        "all models",
        sum(part.gpus for part in parts),
        sum(part.free_mib for part in parts),
        sum(part.fragmented_mib for part in parts),
        sum(unusable) if unusable else None,
    )


def _count_profiles(vms: Iterable[Vm], catalog: Catalog) -> ProfileCounts:
    counts: dict[str, Counter[str]] = {}
    for vm in vms:
        for profile in set(vm.profiles):
            if (board := catalog.board_of(profile)) is not None:
                counts.setdefault(board.key, Counter())[profile] += 1
    return counts
