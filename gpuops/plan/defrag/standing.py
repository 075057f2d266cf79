"""Standing: whether a VM may be moved while it runs, only powered off, or not at all. Unknown = it may not.

Sources: VMware vSphere docs, vMotion of VMs with a vGPU (`vgpu.hotmigrate.enabled`; vSphere API,
HostSharedGpuCapabilities.migrateSupported); NVIDIA AI Enterprise docs: unified memory, debugger and profiler rule out
migration, peer-to-peer needs the same NVLink topology; VMware vSphere docs: DirectPath I/O excludes vMotion, and
`numa.nodeAffinity` means another place on another host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.host import Cluster, Host, RuleKind
from gpuops.model.inventory import Inventory
from gpuops.model.selector import Mark
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import pins_of

HOT_MIGRATE: Final = "vgpu.hotmigrate.enabled"
OPT_OUT: Final = Mark(attribute="gpuops.opt-out")
_CPU_AFFINITY: Final = "sched.cpu.affinity"
_PLUGIN_PARAMETERS: Final = ("enable_uvm", "enable_debugging", "enable_profiling")


class Way(StrEnum):
    """How a VM may get to another host."""

    VMOTION = "vMotion"
    POWERED_OFF = "powered off"
    """Only then: it is never planned, but named."""
    NOT = "not at all"


@dataclass(frozen=True, slots=True)
class Standing:
    """One VM that holds a vGPU, or keeps one waiting, and what speaks against moving it."""

    vm: Vm
    way: Way
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A VM where it is."""

    vm: Vm
    host: Host
    cluster: Cluster | None
    inventory: Inventory
    catalog: Catalog
    marks: Sequence[Mark]
    kept: Mapping[str, str] = field(default_factory=dict)
    """VM ref -> why whoever asks wants it left where it is."""


Reasons = Iterator[str]


def standings(
    inventory: Inventory, hosts: Iterable[Host], catalog: Catalog, marks: Sequence[Mark], kept: Mapping[str, str]
) -> list[Standing]:
    """The VMs of these hosts that hold a vGPU or may, and the suspended ones that will, by host and name."""
    return [
        standing(Case(vm, host, inventory.clusters.get(host.cluster or ""), inventory, catalog, marks, kept))
        for host in hosts
        for vm in sorted(inventory.vms_on(host), key=lambda vm: (vm.name, vm.ref))
        if vm.vgpus and vm.power is not PowerState.OFF
    ]


def standing(case: Case) -> Standing:
    """Whether and how the VM may move, with every reason against it."""
    never = [reason for rule in NEVER for reason in rule(case)]
    if never:
        return Standing(case.vm, Way.NOT, tuple(dict.fromkeys(never)))
    running = tuple(dict.fromkeys(reason for rule in NOT_RUNNING for reason in rule(case)))
    return Standing(case.vm, Way.POWERED_OFF if running else Way.VMOTION, running)


def state(case: Case) -> Reasons:
    vm, host = case.vm, case.host
    if vm.power is PowerState.SUSPENDED:
        yield "is suspended: it holds no slot, and its place is kept for its return"
    elif vm.power is None:
        yield "whether it runs cannot be read"
    if vm.connected is not True:
        yield "is not connected, or does not tell"
    if vm.question is not None:
        yield "waits for an answer to a question"
    if vm.tasks:
        yield f"a task is running on it ({vm.tasks[0].name})"
    if host.connected is not True:
        yield f"{host.name} is not connected, or does not tell"
    if vm.memory_mib is None:
        yield "its memory size cannot be read"


def people(case: Case) -> Reasons:
    """What its owners, the administrators of the cluster and whoever asks have said."""
    if case.vm.ref in case.kept:
        yield case.kept[case.vm.ref]
    for mark in case.marks:
        on = mark.on(case.vm)
        if on is not False:
            yield f"opted out ({mark})" if on else f"{mark} cannot be read"
    if case.cluster is None:
        yield "is in no cluster: whether another host suits it is not known"
    elif case.cluster.rules is None:
        yield f"the DRS rules of cluster {case.cluster.name} were not read"
    else:
        if case.vm.ref in case.cluster.drs_excluded:
            yield "DRS is switched off for it"
        for rule in case.cluster.rules:
            if rule.kind is not RuleKind.HOSTS and case.vm.ref in rule.vms:
                yield f"DRS rule {rule.name!r} keeps it {rule.kind} with others"


def devices(case: Case) -> Reasons:
    vm = case.vm
    if vm.has_passthrough is not False:
        yield "has a passthrough device that is no vGPU" if vm.has_passthrough else "its devices cannot be read"
    if any(device.group is not None for device in vm.vgpus):
        yield "its vGPUs are a device group, and which GPUs of another host are joined is not told"
    for profile in dict.fromkeys(vm.profiles):
        if case.catalog.profile(profile) is None:
            yield f"{profile} is not in the catalogue"


def bindings(case: Case) -> Reasons:
    """What ties it to a place of the host it is on."""
    settings = case.vm.extra_config
    if settings is None:
        yield "its settings cannot be read"
        return
    if pins_of(case.vm):
        yield f"is pinned to GPU {', '.join(sorted({str(gpu) for gpu in pins_of(case.vm).values()}))}"
    if settings.get(AFFINITY_KEY):
        yield f"is bound to NUMA node {settings[AFFINITY_KEY]} ({AFFINITY_KEY}): elsewhere that is another place"
    if settings.get(_CPU_AFFINITY):
        yield f"is bound to CPUs ({_CPU_AFFINITY})"


def vmotion_is_on(case: Case) -> Reasons:
    if case.inventory.hot_migrate_enabled is not True:
        off = case.inventory.hot_migrate_enabled is False
        yield f"vMotion with a vGPU is switched off ({HOT_MIGRATE})" if off else f"{HOT_MIGRATE} cannot be read"


def profiles_migrate(case: Case) -> Reasons:
    for profile in dict.fromkeys(case.vm.profiles):
        offered = case.host.offers(profile)
        if offered is None or offered.migrate is not True:
            yield f"{case.host.name} does not say that {profile} can be migrated"


def plugin_parameters(case: Case) -> Reasons:
    settings = case.vm.extra_config or {}
    for ordinal in range(len(case.vm.devices or ())):
        for name in _PLUGIN_PARAMETERS:
            value = settings.get(f"pciPassthru{ordinal}.cfg.{name}", "")
            if value not in ("", "0"):
                yield f"{name} rules out vMotion"


Rule = Callable[[Case], Reasons]
NEVER: Final[tuple[Rule, ...]] = (state, people, devices, bindings)
NOT_RUNNING: Final[tuple[Rule, ...]] = (vmotion_is_on, profiles_migrate, plugin_parameters)
