"""What a VM needs at its next power-on (`Wanted`: its devices and more), and the place found for it (`Placement`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Final, assert_never

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice, Vm
from gpuops.plan.core.passthru_devices import with_passthru_numbers
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
    """One named PCI device as a whole."""

    ordinal: int
    address: PciAddress


@dataclass(frozen=True, slots=True)
class WantsDynamic:
    """Any one PCI device of these types as a whole, with the hardware label if one is set."""

    ordinal: int
    allowed: tuple[tuple[int, int], ...]
    label: str | None = None


Demand = WantsVgpu | WantsDirectPath | WantsDynamic


@dataclass(frozen=True, slots=True)
class KeptProfile:
    """`count` more vGPUs of the profile must still be able to start."""

    profile: str
    count: int


@dataclass(frozen=True, slots=True)
class KeepFree:
    """What must stay free in the cluster that the VM goes to; without profiles, a place may take all that is free."""

    profiles: tuple[KeptProfile, ...] = ()
    claims: bool = False
    """Whether suspended VMs count as if they were back; False if the snapshot already shows them so."""


NOTHING_KEPT: Final = KeepFree()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a VM needs of a host, and the hosts it may go to."""

    vm: Vm
    demands: tuple[Demand, ...]
    hosts: tuple[str, ...]
    """Refs of the hosts it may go to."""
    numa: NumaPolicy = NumaPolicy.NONE
    pin: PinPolicy = PinPolicy.NEVER
    spread_from: tuple[str, ...] = ()
    """The host ref of each VM that it should not share a host with, if there is a choice."""
    explain: bool = True
    """Whether the placement lists every place that was checked. On a fleet that takes a hundred times as long."""
    reasons: bool = True
    """Whether a refusal lists what each host lacks; if not, hosts that surely have no room are not checked."""
    grouped: bool = False
    """The devices are a vendor device group: only the host chooses their GPUs."""
    chooses_gpu: bool = False
    """Whether the VM may be pinned to a GPU only because that leaves more to other VMs than the host's own choice. That
    requires that the plan knows which other VMs start. If not, it is pinned only where a promise depends on it."""
    coming: ShapeCounts = field(default_factory=dict)
    """The demand of other requests of the same plan that have no place yet; it counts as demand of the site."""
    keep_free: KeepFree = NOTHING_KEPT

    @property
    def beyond_gpus(self) -> bool:
        """Whether a device may be something else than an NVIDIA GPU: the index of the fleet has only these."""
        types = {pair for demand in self.demands if isinstance(demand, WantsDynamic) for pair in demand.allowed}
        return any(vendor != NVIDIA_VENDOR_ID for vendor, _ in types)

    @property
    def bindable(self) -> str | None:
        """The profile if all devices are vGPUs of one profile that may be pinned to any GPU; else None."""
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
    """Where the VM goes. `seats`: the GPU that each device is expected on; `pins`: the vGPUs that must be pinned."""

    host: Host
    seats: Mapping[int, PciAddress] = field(default_factory=dict)
    """By ordinal."""
    pins: Mapping[int, PciAddress] = field(default_factory=dict)
    numa_node: int | None = None
    """The NUMA node with the GPUs and enough cores and memory; None = no such node, or locality was not requested."""
    doubts: tuple[str, ...] = ()
    """Warnings: what could not be checked, or fits only if vGPUs happen to lie favourably."""
    choices: tuple[Choice, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    """The NUMA nodes that a VM wider than one node is spread over; () = it fits into one node."""

    @property
    def local_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that surely have both the VM and its GPUs."""
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
    """Return what the device demands of a host; None = the host need not find it (see `OtherPassthrough`)."""
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
