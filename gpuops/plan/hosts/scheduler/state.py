"""Reads the scheduler of each GPU, as configured and as in effect, and the NVIDIA driver of its host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.catalog import Catalog, Generation
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.scheduler import BEST_EFFORT, DriverBranch, RoundRobin
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SoftwarePackage
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.scheduler import module_options
from gpuops.plan.hosts.scheduler.module_options import Reading


@dataclass(frozen=True, slots=True)
class GpuScheduler:
    """The scheduler of one GPU. None = unknown, or the GPU has no scheduler (`note` says why)."""

    gpu: PhysicalGpu
    configured: Reading | None
    effective: Reading | None
    note: str | None = None

    @property
    def reboot_pending(self) -> bool | None:
        """Whether the next boot changes the scheduler; None = unknown. False for a GPU without a scheduler."""
        if self.note is not None:
            return False
        return None if self.configured is None or self.effective is None else self.configured != self.effective


@dataclass(frozen=True, slots=True)
class HostScheduler:
    """One host, and its GPUs by address."""

    host: Host
    settings: HostSettings
    driver: SoftwarePackage | None
    branch: DriverBranch | None
    gpus: tuple[GpuScheduler, ...]


@dataclass(frozen=True, slots=True)
class Schedulers:
    """The answer of `scheduler show`."""

    inventory: Inventory
    hosts: tuple[HostScheduler, ...]


def schedulers(inventory: Inventory, catalog: Catalog, scope: Scope) -> Schedulers:
    """Return the schedulers of the hosts in the scope. Raises UsageError, HostNotFound for an unknown name."""
    scope.check(inventory)
    return Schedulers(inventory, tuple(scheduler_of(host, catalog) for host in scope.hosts(inventory)))


def scheduler_of(host: Host, catalog: Catalog) -> HostScheduler:
    """One host as it was read."""
    settings = host.settings or HostSettings(unread=("its settings were not asked for",))
    driver = driver_of(settings.packages or ())
    branch = branch_of(driver.version) if driver else None
    round_robin = branch.round_robin if branch else None
    gpus = tuple(_of_gpu(gpu, settings, round_robin, catalog) for gpu in host.gpus)
    return HostScheduler(host, settings, driver, branch, gpus)


def read_options(options: str | None, gpu: PciAddress, round_robin: RoundRobin | None) -> Reading | None:
    """Return what the options say of a GPU; None where they are not known."""
    return None if options is None else module_options.read(options, gpu, round_robin)


def unscheduled(gpu: PhysicalGpu) -> str | None:
    """Return why the GPU has no scheduler; None if its vGPUs share its time, as far as is known.

    MIG-backed vGPUs have parts of the GPU of their own (NVIDIA AI Enterprise docs).
    """
    if gpu.vendor_id not in (0, NVIDIA_VENDOR_ID):
        return "no NVIDIA GPU"
    if gpu.passed_through:
        return "DirectPath I/O"
    return "MIG" if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else None


def generation_of(gpu: PhysicalGpu, catalog: Catalog) -> Generation | None:
    """Return the architecture of the GPU; None = the catalogue does not know it."""
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return board.generation if board else None


def _of_gpu(gpu: PhysicalGpu, settings: HostSettings, round_robin: RoundRobin | None, catalog: Catalog) -> GpuScheduler:
    note = unscheduled(gpu)
    if note is not None:
        return GpuScheduler(gpu, None, None, note)
    if generation_of(gpu, catalog) is Generation.MAXWELL:
        return GpuScheduler(gpu, BEST_EFFORT, BEST_EFFORT, "Maxwell: best effort only")
    return GpuScheduler(
        gpu,
        read_options(settings.module_options, gpu.address, round_robin),
        read_options(settings.loaded_options, gpu.address, round_robin),
    )


_VENDORS: Final = frozenset({"nvidia", "nvd"})
_MANAGEMENT: Final = re.compile(r"mgmt|management", re.IGNORECASE)
_VERSION: Final = re.compile(r"(\d{3})\.\d+")


def driver_of(packages: Iterable[SoftwarePackage]) -> SoftwarePackage | None:
    """Return the vGPU manager among the packages; None = no driver, or several of different branches."""
    drivers = [package for package in packages if _is_driver(package)]
    return drivers[0] if len({branch_of(package.version) for package in drivers}) == 1 else None


def branch_of(version: str) -> DriverBranch | None:
    """Return the branch of a driver version: `550.90.05-1OEM.800.1.0.20613240` is R550; None = no such version."""
    match = _VERSION.match(version)
    return DriverBranch(int(match[1])) if match else None


def _is_driver(package: SoftwarePackage) -> bool:
    """NVIDIA's management daemon is a package of its own, beside the driver."""
    ours = package.vendor.lower() in _VENDORS and branch_of(package.version) is not None
    return ours and _MANAGEMENT.search(package.name) is None
