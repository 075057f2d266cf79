"""Reads the scheduler of each GPU, as configured and as in effect, and the NVIDIA driver of its host. Refuses policies
that a host or a GPU cannot have, and warns of what may reset the module options of a host.

Sources: VMware vSphere docs, Host Profiles (a profile has kernel module settings; remediation applies it, and so does
every boot of a stateless host) and vSphere Configuration Profiles (remediation applies the cluster's configuration)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.catalog import Catalog, Generation
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.scheduler import BEST_EFFORT, DriverBranch, RoundRobin, SchedulerPolicy, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import Custody, HostSettings, SoftwarePackage
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import READ_HOST, RECONNECT, TEST_LOGIN, Rejection, some_names
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.versions import version_numbers
from gpuops.plan.hosts.host_plan import vms_forbidding_change
from gpuops.plan.hosts.scheduler import module_options
from gpuops.plan.hosts.scheduler.module_options import Reading, depends_on_branch, reason_not_encodable


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
    """Return the schedulers of the GPUs of this host, as they were read."""
    settings = host.settings or HostSettings(unread=("its settings were not read",))
    driver = driver_of(settings.packages or ())
    branch = branch_of(driver.version) if driver else None
    round_robin = branch.round_robin if branch else None
    gpus = tuple(_read_gpu(gpu, settings, round_robin, catalog) for gpu in host.gpus)
    return HostScheduler(host, settings, driver, branch, gpus)


def read_options(options: str | None, gpu: PciAddress, round_robin: RoundRobin | None) -> Reading | None:
    """Return the scheduler that these options give a GPU; None = the options are unknown."""
    return None if options is None else module_options.read(options, gpu, round_robin)


def reason_unscheduled(gpu: PhysicalGpu) -> str | None:
    """Return why the GPU has no scheduler; None if its vGPUs share its time, as far as is known.

    MIG-backed vGPUs have parts of the GPU of their own (NVIDIA AI Enterprise docs).
    """
    if gpu.vendor_id not in (0, NVIDIA_VENDOR_ID):
        return "not an NVIDIA GPU"
    if gpu.passed_through:
        return "DirectPath I/O"
    return "MIG" if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else None


def generation_of(gpu: PhysicalGpu, catalog: Catalog) -> Generation | None:
    """Return the architecture of the GPU; None = the catalogue does not know it."""
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return board.generation if board else None


def _read_gpu(
    gpu: PhysicalGpu, settings: HostSettings, round_robin: RoundRobin | None, catalog: Catalog
) -> GpuScheduler:
    note = reason_unscheduled(gpu)
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
    """Return whether the package is NVIDIA's driver. Its management daemon is a package of its own."""
    is_of_nvidia = package.vendor.lower() in _VENDORS and branch_of(package.version) is not None
    return is_of_nvidia and _MANAGEMENT.search(package.name) is None


SHOWN_HOSTS: Final = 4
"""The number of hosts to name in a warning; the others are counted."""


def warn_of_resets(hosts: Iterable[Host], inventory: Inventory) -> tuple[str, ...]:
    """Return a warning for each host profile and cluster that may reset module options, and one for unknown hosts.

    A rolling change checks each host after its reboot, and stops if its options were reset.
    """
    profiles: defaultdict[str, list[str]] = defaultdict(list)
    clusters: defaultdict[str, list[str]] = defaultdict(list)
    unknown: list[str] = []
    for host in hosts:
        custody = custody_of(host)
        for name in custody.profiles or ():
            profiles[name].append(host.name)
        if custody.configured:
            cluster = inventory.clusters.get(host.cluster or "")
            clusters[cluster.name if cluster is not None else host.name].append(host.name)
        if custody.profiles is None or custody.configured is None:
            unknown.append(host.name)
    return tuple(_reset_warnings(profiles, clusters, unknown))


def custody_of(host: Host) -> Custody:
    """Return what may reset the host's options; empty if its settings were not read."""
    return (host.settings or HostSettings()).custody


def _reset_warnings(
    profiles: dict[str, list[str]], clusters: dict[str, list[str]], unknown: list[str]
) -> Iterator[str]:
    """Yield the warnings. `profiles`, `clusters`: name -> names of its hosts; `unknown`: names of hosts."""
    for name, hosts in profiles.items():
        yield (
            f"host profile {name} is attached to {some_names(hosts, SHOWN_HOSTS)}: remediation, and each boot of a "
            "stateless host, reset module options that are not in it; change the profile too"
        )
    for name, hosts in clusters.items():
        yield (
            f"cluster {name} manages the configuration of its hosts ({some_names(hosts, SHOWN_HOSTS)}): its next "
            "remediation resets module options that are not in it; change the cluster's configuration too"
        )
    if unknown:
        yield (
            "this login cannot read whether a host profile or the cluster's configuration resets module options of "
            f"{some_names(unknown, SHOWN_HOSTS)}"
        )


MIXED_SIZE_SINCE = "8.0.3.0"
"""The API version that has HostGraphicsInfo.vgpuMode, and the first in which a GPU can be mixed-size (vSphere API)."""


def host_blockers(host_scheduler: HostScheduler, inventory: Inventory) -> Iterator[Rejection]:
    """Yield why the scheduler of this host cannot be set at all."""
    host, settings = host_scheduler.host, host_scheduler.settings
    if host.connected is not True:
        yield Rejection(host.name, "is not connected", hint=RECONNECT)
        return
    if settings.has_module is False:
        hint = "install NVIDIA's vGPU manager (VIB) on it"
        yield Rejection(host.name, "has no kernel module nvidia", hint=hint)
    elif settings.module_options is None:
        why = "; ".join(settings.unread) or "the host does not report them"
        yield Rejection(host.name, f"its module options cannot be read: {why}", hint=TEST_LOGIN)
    elif (reason := module_options.reason_not_editable(settings.module_options)) is not None:
        hint = "correct them first: esxcli system module parameters set -m nvidia -p '...'"
        yield Rejection(host.name, reason, hint=hint)
    yield from vms_forbidding_change(host, inventory)


def branch_blockers(
    host_scheduler: HostScheduler, stated: DriverBranch | None, scheduler: VgpuScheduler
) -> Iterator[Rejection]:
    """Yield why the policy cannot be encoded for the host's driver branch."""
    host, branch = host_scheduler.host, host_scheduler.branch
    if stated is not None and branch is not None and stated != branch:
        yield Rejection(
            host.name,
            "driver branch",
            str(stated),
            str(branch),
            hint="remove --driver-branch: vCenter reports the branch of this host",
        )
        return
    branch_known = branch or stated
    reason = reason_not_encodable(scheduler, branch_known.round_robin if branch_known else None)
    if reason is None:
        return
    unknown = branch_known is None and depends_on_branch(scheduler)
    yield Rejection(host.name, reason, hint="name the branch, for example --driver-branch R550" if unknown else "")


def gpu_blockers(
    gpu: PhysicalGpu, host: Host, scheduler: VgpuScheduler, inventory: Inventory, catalog: Catalog
) -> Iterator[Rejection]:
    """Yield why this GPU cannot have the policy."""
    subject = f"{host.name} {gpu.address}"
    note = reason_unscheduled(gpu)
    if note == "MIG":
        yield Rejection(
            subject, "MIG-backed vGPUs are not scheduled: each has its own part (NVIDIA AI Enterprise docs)"
        )
    elif note is not None:
        yield Rejection(subject, f"{note}: the host's vGPU driver does not schedule it")
    elif generation_of(gpu, catalog) is Generation.MAXWELL:
        yield Rejection(subject, "Maxwell GPUs have best effort only (NVIDIA vGPU docs: policies are for later GPUs)")
    elif scheduler.policy is SchedulerPolicy.FIXED_SHARE:
        yield from _refuse_fixed_share(gpu, subject, inventory)


def _refuse_fixed_share(gpu: PhysicalGpu, subject: str, inventory: Inventory) -> Iterator[Rejection]:
    rule = "a mixed-size GPU can have best effort or equal share only (NVIDIA AI Enterprise docs)"
    if gpu.vgpu_mode is VgpuMode.MIXED_SIZE:
        yield Rejection(subject, rule)
    elif gpu.vgpu_mode is None and version_numbers(inventory.api_version) >= version_numbers(MIXED_SIZE_SINCE):
        yield Rejection(subject, f"whether it is in mixed-size mode cannot be read, and {rule}", hint=READ_HOST)


def unchecked_rules(gpu: PhysicalGpu, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[str]:
    """Yield a warning for each rule that could not be checked."""
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None:
        yield f"{host.name} {gpu.address}: {gpu.name} is not in the catalogue: whether it has policies is not checked"
    elif gpu.vgpu_mode is None and board.mig is not None:
        yield f"{host.name} {gpu.address}: vCenter {inventory.api_version} does not report whether it is in MIG mode"
