"""Whether a VM may be moved by vMotion, only powered off, or not at all; which hosts may take it; and whether a plan's
moves are admitted. What is unknown counts against a move.

Sources: VMware vSphere docs, vMotion of VMs with a vGPU (`vgpu.hotmigrate.enabled`; vSphere API,
HostSharedGpuCapabilities.migrateSupported); NVIDIA AI Enterprise docs: unified memory, debugger and profiler rule out
migration, peer-to-peer needs the same NVLink topology; VMware vSphere docs: DirectPath I/O excludes vMotion, and
`numa.nodeAffinity` means another place on another host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gpuops.advise.managed_vms import left_to_manager, lending_reason
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.selector import Mark
from gpuops.model.vcenter.host import Cluster, DrsRule, Host, RuleKind
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, passthru_number, pins_of
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import ReconfigureVm, RelocateVm, VmChange
from gpuops.plan.moving.vmotion_stun import too_long
from gpuops.plan.placement.host_filters import (
    AFFINITY_KEY,
    Headroom,
    refusals,
    refuse_leaving_vapp,
    refuse_maintenance,
    refuse_missing_profiles,
    refuse_too_many_vcpus,
    refuse_unreachable,
    refuse_unseen_files,
    refuse_without_cpu,
)
from gpuops.plan.placement.keep_free import reserved_left
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.suspended_vms import claims
from gpuops.plan.placement.vm_demand import Wanted, demands_of

HOT_MIGRATE: Final = "vgpu.hotmigrate.enabled"
OPT_OUT: Final = Mark(attribute="gpuops.opt-out")
NO_PINS: Final[Mapping[int, Mapping[str, str]]] = MappingProxyType({})
_CPU_AFFINITY: Final = "sched.cpu.affinity"
_PLUGIN_PARAMETERS: Final = ("enable_uvm", "enable_debugging", "enable_profiling")
_FILTERS: Final[tuple[Callable[[Wanted, Host, Inventory], Rejection | None], ...]] = (
    refuse_unreachable,
    refuse_maintenance,
    refuse_too_many_vcpus,
    refuse_without_cpu,
    refuse_unseen_files,
    refuse_leaving_vapp,
    refuse_missing_profiles,
)


class MoveMethod(StrEnum):
    """How a VM may be moved to another host."""

    VMOTION = "vMotion"
    POWERED_OFF = "powered off"
    """Only while it is off; planned only if the request allows it."""
    NOT = "not at all"


@dataclass(frozen=True, slots=True)
class Movability:
    """How one VM may be moved, and every reason against moving it otherwise."""

    vm: Vm
    way: MoveMethod
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MovabilityCase:
    """A VM on its host, and what its movability is judged by."""

    vm: Vm
    host: Host
    cluster: Cluster | None
    inventory: Inventory
    catalog: Catalog
    marks: Sequence[Mark]
    reasons_to_stay: Mapping[str, str] = field(default_factory=dict)
    """VM ref -> why the caller wants it left where it is."""


Reasons = Iterator[str]


def judge_all(
    inventory: Inventory,
    hosts: Iterable[Host],
    catalog: Catalog,
    marks: Sequence[Mark],
    reasons_to_stay: Mapping[str, str],
) -> list[Movability]:
    """Return the movability of the VMs of these hosts that have a vGPU and are not off, by host and name."""
    movabilities = []
    for host in hosts:
        cluster = inventory.clusters.get(host.cluster or "")
        for vm in sorted(inventory.vms_on(host), key=lambda vm: (vm.name, vm.ref)):
            if vm.vgpus and vm.power is not PowerState.OFF:
                case = MovabilityCase(vm, host, cluster, inventory, catalog, marks, reasons_to_stay)
                movabilities.append(judge_movability(case))
    return movabilities


def judge_movability(case: MovabilityCase) -> Movability:
    """Return how the VM may be moved, with every reason against it."""
    never = [reason for rule in NEVER for reason in rule(case)]
    if never:
        return Movability(case.vm, MoveMethod.NOT, tuple(dict.fromkeys(never)))
    running = tuple(dict.fromkeys(reason for rule in NOT_RUNNING for reason in rule(case)))
    return Movability(case.vm, MoveMethod.POWERED_OFF if running else MoveMethod.VMOTION, running)


def state_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from the present state of the VM and of its host."""
    vm, host = case.vm, case.host
    if vm.power is PowerState.SUSPENDED:
        yield "is suspended: it holds no slot, and its place is kept for its return"
    elif vm.power is None:
        yield "whether it runs cannot be read"
    if vm.connected is not True:
        yield "is not connected, or its connection state cannot be read"
    if vm.question is not None:
        yield "waits for an answer to a question"
    if vm.tasks:
        yield f"a task is running on it ({vm.tasks[0].name})"
    if host.connected is not True:
        yield f"{host.name} is not connected, or its connection state cannot be read"
    if vm.memory_mib is None:
        yield "its memory size cannot be read"


def owner_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from its manager, its owners, the administrators of the cluster and the caller."""
    # another product manages the VM, or it lends its GPUs: each function returns a reason or None
    yield from filter(None, (left_to_manager(case.vm), lending_reason(case.vm)))
    if case.vm.ref in case.reasons_to_stay:
        yield case.reasons_to_stay[case.vm.ref]
    for mark in case.marks:
        has_mark = mark.on(case.vm)
        if has_mark is not False:
            yield f"opted out ({mark})" if has_mark else f"{mark} cannot be read"
    if case.cluster is None:
        yield "is in no cluster: whether another host suits it is not known"
    elif case.cluster.rules is None:
        yield f"the DRS rules of cluster {case.cluster.name} were not read"
    else:
        if case.vm.ref in case.cluster.drs_excluded:
            yield "DRS is switched off for it"
        for rule in case.cluster.rules:
            if rule.kind is not RuleKind.HOSTS and case.vm.ref in rule.vms:
                where = "together with" if rule.kind is RuleKind.TOGETHER else "apart from"
                yield f"DRS rule {rule.name!r} keeps it {where} others"


def device_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from its passthrough devices."""
    vm = case.vm
    if vm.has_passthrough is not False:
        yield "has a passthrough device that is not a vGPU" if vm.has_passthrough else "its devices cannot be read"
    if any(device.group is not None for device in vm.vgpus):
        yield "its vGPUs are a device group, and vCenter does not report which GPUs of another host are joined"
    for profile in dict.fromkeys(vm.profiles):
        if case.catalog.profile(profile) is None:
            yield f"{profile} is not in the catalogue"


def binding_reasons(case: MovabilityCase) -> Reasons:
    """Settings that bind it to a GPU, a NUMA node or CPUs of its host."""
    settings = case.vm.extra_config
    if settings is None:
        yield "its settings cannot be read"
        return
    if pins_of(case.vm):
        yield f"is pinned to GPU {', '.join(sorted({str(gpu) for gpu in pins_of(case.vm).values()}))}"
    if settings.get(AFFINITY_KEY):
        yield f"is bound to NUMA node {settings[AFFINITY_KEY]} ({AFFINITY_KEY}), which is another place on another host"
    if settings.get(_CPU_AFFINITY):
        yield f"is bound to CPUs ({_CPU_AFFINITY})"


def vmotion_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from the setting of vCenter that allows vMotion with a vGPU."""
    if case.inventory.hot_migrate_enabled is not True:
        off = case.inventory.hot_migrate_enabled is False
        yield f"vMotion with a vGPU is switched off ({HOT_MIGRATE})" if off else f"{HOT_MIGRATE} cannot be read"


def profile_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from vGPU profiles that its host does not report as migratable."""
    for profile in dict.fromkeys(case.vm.profiles):
        offered = case.host.offers(profile)
        if offered is None or offered.migrate is not True:
            yield f"{case.host.name} does not report that {profile} can be migrated"


def plugin_reasons(case: MovabilityCase) -> Reasons:
    """Reasons from vGPU plugin parameters of the VM that exclude vMotion."""
    settings = case.vm.extra_config or {}
    for ordinal in (passthru_number(device.key) for device in case.vm.devices or ()):
        for name in _PLUGIN_PARAMETERS:
            parameter = settings.get(f"pciPassthru{ordinal}.cfg.{name}", "")
            if parameter not in ("", "0"):
                yield f"{name} rules out vMotion"


Rule = Callable[[MovabilityCase], Reasons]
NEVER: Final[tuple[Rule, ...]] = (state_reasons, owner_reasons, device_reasons, binding_reasons)
NOT_RUNNING: Final[tuple[Rule, ...]] = (vmotion_reasons, profile_reasons, plugin_reasons)


@dataclass(slots=True)
class TargetHosts:
    """Which hosts of one cluster may take a VM, whatever room they have; VMs that are alike share one answer."""

    hosts: Sequence[Host]
    cluster: Cluster | None
    inventory: Inventory
    _answers: dict[tuple[object, ...], tuple[frozenset[str], tuple[Rejection, ...]]] = field(default_factory=dict)

    def of(self, vm: Vm, *, running: bool) -> tuple[frozenset[str], tuple[Rejection, ...]]:
        """Return refs of the hosts that may take the VM, its own among them, and why each of the others may not."""
        rules = self._rules(vm)
        # VMs share an answer if everything that the checks look at is equal. The VM's host matters only in two cases:
        # with a CPU reservation, because that host already has the CPU reserved,
        reserved = (vm.cpu_reservation_mhz, vm.host) if vm.cpu_reservation_mhz else None
        # and with an estimate of the stun, because it is the larger one of both hosts.
        source = self.inventory.host_of(vm) if running else None
        estimated = vm.host if source is not None and source.config_target is not None else None
        limits = (reserved, estimated, running)
        cache_key = (vm.profiles, vm.vcpus, vm.memory_mib, limits, vm.datastores, vm.vapp, vm.unreadable, rules)
        if cache_key not in self._answers:
            headroom = Headroom(vm, self.inventory)
            may_take, rejections = [], []
            for host in self.hosts:
                rejection = next(self._refusals(vm, host, headroom, running), None)
                if rejection is None:
                    may_take.append(host.ref)
                else:
                    rejections.append(rejection)
            self._answers[cache_key] = (frozenset(may_take), tuple(rejections))
        return self._answers[cache_key]

    def _refusals(self, vm: Vm, host: Host, headroom: Headroom, running: bool) -> Iterator[Rejection]:
        """Yield why the host may not take the VM, the cheapest check first: the caller needs only the first reason."""
        needs = Wanted(vm, demands_of(vm.devices or (), {}), (host.ref,))
        for host_filter in _FILTERS:
            refusal = host_filter(needs, host, self.inventory)
            if refusal is not None:
                yield refusal
        kept_for_ha = headroom.refusal(host)
        if kept_for_ha is not None:
            yield kept_for_ha
        for rule in self._rules(vm):
            if not rule.allows(host.ref):
                yield Rejection(host.name, f"DRS rule {rule.name!r} keeps {vm.name} off it")
        for profile in dict.fromkeys(vm.profiles) if running else ():
            offered = host.offers(profile)
            if offered is None or offered.migrate is not True:
                yield Rejection(host.name, f"does not report that {profile} can be migrated")
        source = self.inventory.host_of(vm)
        if running and source is not None and (stun := too_long(vm, source, host, self.cluster)) is not None:
            yield stun

    def _rules(self, vm: Vm) -> tuple[DrsRule, ...]:
        rules = self.cluster.rules if self.cluster is not None else None
        return tuple(rule for rule in rules or () if vm.ref in rule.vms)


def admitted_moves(
    steps: Sequence[RelocateVm], inventory: Inventory, catalog: Catalog, pins: Mapping[int, Mapping[str, str]] = NO_PINS
) -> int:
    """Return how many moves of the sequence are certainly admitted, up to the first that may be refused.

    `pins`: number of a move -> the extraConfig entries that bind its VM to GPUs from then on.

    The search only compares counts and kinds, for speed. Here every move must pass the rules that `place`, `attach` and
    the rotation follow. No suspended VM may lose its place, and no reservation its room.
    """
    for number, step in enumerate(steps):
        if number in pins:
            inventory = project(ReconfigureVm(step.vm, VmChange(extra_config=pins[number])), inventory, catalog)
        if not _is_admitted(step, inventory, catalog):
            return number
        before = inventory
        inventory = project(step, inventory, catalog)
        lost_before, lost_after = (
            {claim.vm.ref for claim in claims(snapshot, catalog, [step.host]) if claim.lost}
            for snapshot in (before, inventory)
        )
        if lost_after - lost_before:
            return number  # a suspended VM would lose its place
        target = inventory.hosts[step.host]
        if any(shortage.too_few for shortage in reserved_left([target], before, inventory, catalog)):
            return number
    return len(steps)


def _is_admitted(step: RelocateVm, inventory: Inventory, catalog: Catalog) -> bool:
    """Return whether the exact rules of placement let the VM start on the target of this move."""
    vm, host = inventory.vm(step.vm), inventory.hosts.get(step.host)
    if host is None:
        return False
    needs = Wanted(vm, demands_of(vm.devices or (), {}), (host.ref,))
    if refusals(needs, host, inventory) or Headroom(vm, inventory).refusal(host) is not None:
        return False
    seating = seat(vm, needs.demands, host, inventory, catalog)
    return seating.complete and not seating.doubts
