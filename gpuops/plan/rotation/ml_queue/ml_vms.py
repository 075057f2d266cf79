"""The ML VMs of a night: which VMs of the queue wait, on which hosts they may start, one start, and their DRS
overrides.

`night.py`, `queue.py` and `proposals.py` call it; `day.py` restores the DRS settings.

If an entry of the queue names a VM, no pattern selects it. A pattern selects VMs that have a GPU device and are in no
pool, so that a desktop with a matching name is not started as an ML VM.

DRS might move an ML VM onto the GPUs that desktops need in the morning. A VM override, `manual`, keeps it on its host.
The earlier setting is in the journal and in the marker, so that either of them is enough to restore it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpuops.advise.managed_vms import left_to_manager
from gpuops.errors import VmAmbiguous, VmNotFound
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation_policy import DrsOverride, Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs, pins_of
from gpuops.model.workloads.job_rules import is_pattern
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import SetVmDrs
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.rotation.taken_vms import TakenVm

ASSUMED_NIGHT: Final = timedelta(hours=12)
"""The assumed length of a night without a window. All GPUs are idle now, so the effect of this number is small."""


@dataclass(frozen=True, slots=True)
class WaitingVm:
    """One VM of the queue, or an entry that selects no VM."""

    queued: QueuedVm
    name: str
    vm: Vm | None
    reason: str = ""
    """Why it does not start tonight, even if there is room; empty = it may start."""
    team: str = ""
    """Its team, if the policy has `fair_share`."""
    rank: int = 0
    """Within a priority, lower ranks are tried first; without `fair_share` all are equal."""
    note: str = ""
    """A remark on its place in the queue, shown if there is no room for it."""

    @property
    def runs(self) -> bool:
        return self.vm is not None and self.vm.power is PowerState.ON


HoldBackCheck = Callable[[Sequence[Vm], Vm], str]
"""A function that returns why the VM may not start in addition to the VMs that start before it; empty = it may."""


def hold_back_none(started: Sequence[Vm], vm: Vm) -> str:
    return ""


def waiting_vms(policy: Policy, inventory: Inventory, gave_way: Collection[str] = frozenset()) -> tuple[WaitingVm, ...]:
    """Return every VM of the queue: by priority, the highest first, then in the order of the file, then by name.

    `gave_way`: VMs (refs) that a watch suspended and that may be resumed.
    """
    # the VMs that jobs wait for have their own entries (`execute/jobs`)
    queued_by_priority = sorted(
        (queued_vm for queued_vm in policy.ml if not queued_vm.for_jobs), key=lambda queued: -queued.priority
    )
    # Entry, name, the VM of that name or None, and why none was found.
    named = [
        (queued, name, *_find_or_reason(name, inventory)) for queued in queued_by_priority for name in queued.names
    ]
    claimed = {vm.ref for _, _, vm, _ in named if vm is not None}
    name_in_queue: dict[str, str] = {}
    waiting: list[WaitingVm] = []
    for queued, name, vm, reason in named:
        # two names of one VM, such as its path and its managed object id: it starts once
        if vm is not None and name_in_queue.setdefault(vm.ref, name) != name:
            reason = f"{name} is {name_in_queue[vm.ref]}, which is in the queue already"
            waiting.append(WaitingVm(queued, name, None, reason))
            continue
        # a plain name, or a VM whose own name looks like a pattern, such as `train[1]`
        if not is_pattern(name) or vm is not None:
            waiting.append(WaitingVm(queued, name, vm, reason or _reason_not_to_start(queued, vm, gave_way)))
            continue
        # a pattern: skip VMs that an entry names or that an earlier pattern selected
        fitting = [vm for vm in _vms_matching(name, policy, inventory) if vm.ref not in claimed]
        claimed |= {vm.ref for vm in fitting}
        waiting += [WaitingVm(queued, vm.name, vm, _reason_not_to_start(queued, vm, gave_way)) for vm in fitting]
        if not fitting:
            waiting.append(WaitingVm(queued, name, None, f"no VM with a GPU device is called {name!r}"))
    return tuple(waiting)


def _find_or_reason(name: str, inventory: Inventory) -> tuple[Vm | None, str]:
    try:
        return inventory.find_vm(name), ""
    except (VmNotFound, VmAmbiguous) as error:
        return None, error.message


def _vms_matching(pattern: str, policy: Policy, inventory: Inventory) -> Iterable[Vm]:
    """Return the VMs that a pattern selects, by name."""
    entry_of_pattern = QueuedVm(pattern)
    vms = [
        vm
        for vm in inventory.vms.values()
        if entry_of_pattern.fits(vm.name) and vm.devices and policy.pool_of(vm) is None
    ]
    return sorted(vms, key=lambda vm: (vm.name, vm.ref))


def _reason_not_to_start(queued: QueuedVm, vm: Vm | None, gave_way: Collection[str]) -> str:
    """Return why the VM does not start tonight, even if there is room; empty = it may start, or there is no VM.

    `gave_way`: VMs (refs) that a watch suspended; these may be resumed.
    """
    if vm is None:
        return ""
    if vm.power is PowerState.ON:
        return "runs already"
    manager = left_to_manager(vm)
    if manager is not None:
        return manager
    if vm.power is not PowerState.OFF and vm.ref not in gave_way:
        return f"is not powered off ({vm.power or 'its power state cannot be read'})"
    if vm.connected is not True or vm.unreadable or vm.devices is None or vm.template:
        return "cannot be read completely, or is not connected"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    if not queued.carried_by(vm):
        return f"carries {', '.join(vm.profiles) or 'no vGPU'}, the policy requires {queued.profile}"
    return ""


@dataclass(frozen=True, slots=True)
class Start:
    """One ML VM that starts, and the desktops that make room for it."""

    vm: Vm
    queued: QueuedVm
    host: Host
    desktops: tuple[Vm, ...]

    @property
    def moves(self) -> bool:
        return self.vm.host != self.host.ref

    @property
    def because(self) -> str:
        """Why it starts, and where."""
        count = len(self.desktops)
        room_text = f"{count} desktop(s) make room" if count else "there is room without any desktop"
        return f"starts on {self.host.name}: {room_text}" + (", after a cold move" if self.moves else "")


def limit_to_counts(queue: Iterable[WaitingVm]) -> Iterator[WaitingVm]:
    """Yield the VMs that may start, at most `count` of each entry."""
    queue = tuple(queue)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    for waiting in queue:
        limit = waiting.queued.count
        if waiting.vm is not None and not waiting.reason and (limit is None or running[waiting.queued] < limit):
            running[waiting.queued] += 1
            yield waiting


def hosts_for(vm: Vm, queued: QueuedVm, world: Inventory) -> list[Host]:
    """Return the hosts on which the VM may start: its own first, then by name those to which it may be moved."""
    own_host = world.host_of(vm)
    # A pin is a PCI address and a NUMA node a number on the own host: after a move both would have another meaning.
    # A suspended VM resumes on its own host.
    may_move = queued.relocate and not is_bound(vm) and vm.power is not PowerState.SUSPENDED
    other_hosts = [host for host in world.hosts.values() if host is not own_host and host.gpus] if may_move else []
    usable = [own_host, *sorted(other_hosts, key=lambda host: host.name)] if own_host else other_hosts
    return [host for host in usable if host.connected is True and host.in_maintenance is False]


def is_bound(vm: Vm) -> bool:
    """Return whether the configuration of the VM names a GPU or a NUMA node of its host."""
    return bool(pins_of(vm) or (vm.extra_config or {}).get(AFFINITY_KEY))


def drs_before(policy: Policy, night: str, vm: Vm, host: Host, inventory: Inventory) -> VmDrs | None:
    """Return the DRS setting that the VM had before this night; None = it needs no override, or cannot have one.

    If an interrupted run has already changed the setting, the earlier one is in the marker.
    """
    if policy.drs_override is DrsOverride.NONE:
        return None
    marker = parse_marker(vm.attributes.get(policy.marker, ""))
    if marker is not None and (marker.night, marker.role) == (night, Role.ML) and marker.drs is not None:
        return marker.drs
    cluster = inventory.clusters.get(host.cluster or "")
    if cluster is None or cluster.drs_enabled is False:
        return None
    present = cluster.drs_of(vm.ref)
    return None if present is None or present.moves_nothing else present


def unreadable_drs(policy: Policy, starts: Iterable[Start], inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each cluster whose DRS settings for the starting VMs this login cannot read."""
    if policy.drs_override is DrsOverride.NONE:
        return
    hosts = {start.host.cluster: start for start in starts if start.host.cluster is not None}
    for ref, start in sorted(hosts.items()):
        cluster = inventory.clusters.get(ref)
        if cluster is None or (cluster.drs_enabled is not False and cluster.drs_of(start.vm.ref) is None):
            name = cluster.name if cluster is not None else ref
            rule = f"drs_override: {policy.drs_override}: the DRS settings of this cluster cannot be read"
            yield Rejection(name, rule, hint="give this login read access to the cluster, or set `drs_override: none`")


def drs_overrides(before: Mapping[str, VmDrs], starts: Iterable[Start], inventory: Inventory) -> tuple[SetVmDrs, ...]:
    """Return the steps that set the DRS overrides of the starting VMs, except those that an interrupted run has set."""
    overrides = []
    for start in starts:
        cluster = inventory.clusters.get(start.host.cluster or "")
        if start.vm.ref in before and cluster is not None and cluster.drs_of(start.vm.ref) is not VmDrs.MANUAL:
            overrides.append(SetVmDrs(start.vm.ref, VmDrs.MANUAL))
    return tuple(overrides)


def restore_drs(of_nights: Iterable[TakenVm], inventory: Inventory) -> Iterator[SetVmDrs]:
    """Yield the steps that restore the earlier DRS settings of VMs of nights, unless a person changed them since."""
    for taken_vm in of_nights:
        vm, drs = taken_vm.vm, taken_vm.original.drs
        # the override of the night is `manual`; None = the present setting cannot be read
        if vm is not None and drs is not None and inventory.drs_of(vm) in (VmDrs.MANUAL, None):
            yield SetVmDrs(vm.ref, drs)
