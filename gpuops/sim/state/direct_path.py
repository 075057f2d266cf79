"""DirectPath profiles of a vCenter, what is reserved of them, and how many vGPUs of a type the GPUs of a host take.

Sources: vSphere API 9.0, DirectPathProfileManager; vSphere Supervisor docs: VM classes are reserved for namespaces, in
each zone. Which VMs take a reserved unit is the Supervisor's to say: here a reservation names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, RunningVgpu, VgpuPolicy, WantedVgpu, admit


@dataclass(frozen=True, slots=True)
class DirectPathProfileState:
    """A DirectPath profile: a vGPU type, or the name of a device group, by a name of its own."""

    id: str
    name: str
    description: str
    vgpu: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class ReservationState:
    """Units of a vGPU type that only some VMs may take in a cluster."""

    vgpu: str
    units: int
    place: str
    """Moid of the cluster."""
    vms: tuple[str, ...] = ()
    """For whom it is: names, where * stands for anything."""

    def is_for(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.vms)


@dataclass(slots=True)
class DirectPathState:
    """All of a vCenter, by the profiles' ids in the order they came."""

    profiles: dict[str, DirectPathProfileState] = field(default_factory=dict)
    reservations: tuple[ReservationState, ...] = ()


def room(vgpu: str, gpus: Sequence[GpuLoad], policy: VgpuPolicy) -> int:
    """How many more vGPUs of the type these GPUs of one host take, each where the host would put it."""
    loads = {gpu.pci_id: gpu for gpu in gpus}
    for number in range(sum(_most(vgpu, gpu) for gpu in gpus) + 1):
        found = admit("", [WantedVgpu(vgpu)], list(loads.values()), policy)
        if isinstance(found, NotAdmitted):
            return number
        for seat in found:
            loads[seat.pci_id] = _with(loads[seat.pci_id], [seat])
    raise AssertionError("a host takes more vGPUs than its GPUs hold")


def _most(vgpu: str, gpu: GpuLoad) -> int:
    type_ = gpu.board.by_name.get(vgpu)
    return 0 if type_ is None else max(type_.max_per_gpu, gpu.board.framebuffer_mib // type_.framebuffer_mib)


def _with(gpu: GpuLoad, seats: Iterable[RunningVgpu]) -> GpuLoad:
    return replace(gpu, seats=(*gpu.seats, *seats))
