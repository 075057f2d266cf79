"""What a placement looks for (`Wanted`: the devices of a VM at its next power-on) and what it finds (`Placement`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Final, assert_never

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice, Vm
from gpuops.plan.core.device_numbers import with_passthru_numbers
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.placement.fleet.site_demand import ShapeCounts


class PinPolicy(StrEnum):
    """Whether gpuops may pin a vGPU to a physical GPU (`pciPassthru<N>.cfg.gpu-pci-id`)."""

    AUTO = "auto"
    """Where a promise depends on it: NUMA locality is required, and the host has such GPUs on other nodes too."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class WantsVgpu:
    """A vGPU. `ordinal`: N of its VMX name `pciPassthruN`; `pin`: the GPU that it is bound to."""

    ordinal: int
    profile: str
    pin: PciAddress | None = None


@dataclass(frozen=True, slots=True)
class WantsDirectPath:
    """One given PCI device, whole."""

    ordinal: int
    address: PciAddress


@dataclass(frozen=True, slots=True)
class WantsDynamic:
    """Any one PCI device of these types, with the label if one is set, whole."""

    ordinal: int
    allowed: tuple[tuple[int, int], ...]
    label: str | None = None


Demand = WantsVgpu | WantsDirectPath | WantsDynamic


@dataclass(frozen=True, slots=True)
class KeptProfile:
    """So many more vGPUs of the profile must still be able to start."""

    profile: str
    count: int


@dataclass(frozen=True, slots=True)
class KeepFree:
    """What is to stay free in the cluster that the VM goes to; nothing = a place may take whatever is there."""

    profiles: tuple[KeptProfile, ...] = ()
    claims: bool = False
    """Whether suspended VMs count as if they were back; False where the snapshot has them so already."""


NOTHING_KEPT: Final = KeepFree()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for, and on which hosts."""

    vm: Vm
    demands: tuple[Demand, ...]
    hosts: tuple[str, ...]
    """Refs of the hosts it may go to."""
    numa: NumaPolicy = NumaPolicy.NONE
    pin: PinPolicy = PinPolicy.NEVER
    spread_from: tuple[str, ...] = ()
    """The host ref of each VM that it should share no host with, where there is a choice."""
    explain: bool = True
    """Whether the placement lists every place looked at: on a fleet that takes a hundred times as long as the
    answer."""
    reasons: bool = True
    """Whether a refusal tells what each host lacks; without, hosts that surely have no room are not asked."""
    grouped: bool = False
    """The devices are a vendor device group: only the host chooses their GPUs."""
    chooses_gpu: bool = False
    """Whether it may be bound to any GPU that is better for the others than the one its host would choose: where the
    plan knows who else is started. Else a GPU is bound to only where a promise depends on it."""
    coming: ShapeCounts = field(default_factory=dict)
    """What other requests of the same plan ask for that have no place yet; it counts as demand of the site."""
    keep_free: KeepFree = NOTHING_KEPT

    @property
    def beyond_gpus(self) -> bool:
        """Whether a device may be no NVIDIA GPU: the index of the fleet knows of those alone."""
        types = {pair for demand in self.demands if isinstance(demand, WantsDynamic) for pair in demand.allowed}
        return any(vendor != NVIDIA_VENDOR_ID for vendor, _ in types)

    @property
    def bindable(self) -> str | None:
        """The profile, where all devices are vGPUs of one profile that may be pinned to any GPU; else None."""
        profiles = self._free_profiles
        return next(iter(profiles)) if len(profiles) == 1 else None

    @property
    def mixed(self) -> bool:
        """Whether all devices are vGPUs of several profiles that may be pinned to any GPU."""
        return len(self._free_profiles) > 1

    @property
    def _free_profiles(self) -> frozenset[str]:
        free = self.chooses_gpu and not self.grouped and self.pin is not PinPolicy.NEVER
        if not free or not all(isinstance(demand, WantsVgpu) and not demand.pin for demand in self.demands):
            return frozenset()
        return frozenset(demand.profile for demand in self.demands if isinstance(demand, WantsVgpu))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the VM goes. `seats`: the GPU that each device is expected on; `pins`: those that must be bound to it."""

    host: Host
    seats: Mapping[int, PciAddress] = field(default_factory=dict)
    """By ordinal."""
    pins: Mapping[int, PciAddress] = field(default_factory=dict)
    numa_node: int | None = None
    """The host's node that holds the GPUs and has the cores and memory; None = no such node, or not looked for."""
    doubts: tuple[str, ...] = ()
    """What could not be checked, or fits only in a lucky layout: a warning, no reason to refuse."""
    choices: tuple[Choice, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    """The nodes of a VM that is wider than one: its GPUs, cores and memory are spread over them; () = it is not."""

    @property
    def bound_to(self) -> tuple[int, ...]:
        """The NUMA nodes with both the VM and its GPUs; () = none for certain."""
        return self.numa_nodes or (() if self.numa_node is None else (self.numa_node,))


def demands_of(devices: Iterable[GpuDevice | NewDevice], pins: Mapping[int, PciAddress]) -> tuple[Demand, ...]:
    """Return what these devices need of a host, in the order of N of their VMX names `pciPassthruN`.

    `pins`: the GPU of each pinned vGPU by N; new devices have the N that vCenter will give them. Passthrough devices
    that are neither vGPUs nor DirectPath devices need nothing here.
    """
    by_number = sorted(with_passthru_numbers(devices), key=itemgetter(0))
    demands = (_demand(device, ordinal, pins.get(ordinal)) for ordinal, device in by_number)
    return tuple(demand for demand in demands if demand is not None)


def _demand(device: GpuDevice | NewDevice, ordinal: int, pin: PciAddress | None) -> Demand | None:
    match device:
        case VgpuDevice(profile=profile) | NewVgpu(profile=profile):
            return WantsVgpu(ordinal, profile, pin)
        case DirectPathDevice(address=address) | NewDirectPath(address=address):
            return WantsDirectPath(ordinal, address)
        case DynamicDevice(allowed=allowed, label=label) | NewDynamic(allowed=allowed, label=label):
            return WantsDynamic(ordinal, allowed, label)
        case OtherPassthrough():
            return None
        case _:
            assert_never(device)
