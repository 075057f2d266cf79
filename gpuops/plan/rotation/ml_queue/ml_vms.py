"""The ML VMs of a night: which of the queue wait, on which hosts they may start, one start, and how DRS is kept off
them.

`night.py`, `queue.py` and `proposals.py` call it; `day.py` restores what DRS did before.

A VM that an entry names is meant by that entry alone. A pattern means VMs that carry a GPU device and are in no pool: a
desktop whose name happens to fit is not started as an ML VM.

DRS might move an ML VM onto the GPUs that desktops come back to. An override of the VM's own, `manual`, keeps it where
the plan has put it. The setting that it had before is in the journal and in its marker, so that either alone is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpuops.advise.managed_vms import left_to_manager
from gpuops.errors import VmAmbiguous, VmNotFound
from gpuops.model.nights.ml_queue import QueuedVm, is_pattern
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation import DrsOverride, Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs, pins_of
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import SetVmDrs
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.rotation.taken_vms import TakenVm

NO_WINDOW: Final = timedelta(hours=12)
"""How long a night is taken to be where the policy has no window. As all GPUs are idle now, it changes little."""


@dataclass(frozen=True, slots=True)
class WaitingVm:
    """One VM of the queue, or an entry that means none."""

    queued: QueuedVm
    name: str
    vm: Vm | None
    reason: str = ""
    """Why it does not start tonight, whatever room there is; empty = it may."""
    team: str = ""
    """Whose it is, where the policy says `fair_share`."""
    rank: int = 0
    """Of those of one priority the lower is tried first; all have the same without `fair_share`."""
    note: str = ""
    """What is said of its place where it finds no room."""

    @property
    def runs(self) -> bool:
        return self.vm is not None and self.vm.power is PowerState.ON


HeldBack = Callable[[Sequence[Vm], Vm], str]
"""Why the VM may not start beside those that start before it; empty = it may."""


def nobody_held_back(started: Sequence[Vm], vm: Vm) -> str:
    return ""


def waiting_vms(policy: Policy, inventory: Inventory, gave_way: Collection[str] = frozenset()) -> tuple[WaitingVm, ...]:
    """Every VM of the queue: the higher priority first, then as the file has it, then by name.

    `gave_way`: VMs (refs) that are suspended, and may go on.
    """
    # which VMs jobs wait for is said by entries of their own (`execute/jobs`)
    entries = sorted((each for each in policy.ml if not each.for_jobs), key=lambda queued: -queued.priority)
    named = [(queued, name, *_find(name, inventory)) for queued in entries for name in queued.names]
    claimed = {vm.ref for _, _, vm, _ in named if vm is not None}
    name_in_queue: dict[str, str] = {}
    waiting: list[WaitingVm] = []
    for queued, name, vm, reason in named:
        # two names of one VM, such as its path and its managed object id: it starts once
        if vm is not None and name_in_queue.setdefault(vm.ref, name) != name:
            reason = f"{name} is {name_in_queue[vm.ref]}, which is in the queue already"
            waiting.append(WaitingVm(queued, name, None, reason))
            continue
        if not is_pattern(name) or vm is not None:
            waiting.append(WaitingVm(queued, name, vm, reason or _hindrance(queued, vm, gave_way)))
            continue
        # a pattern: VMs that are named, or that a pattern before it has taken, are not taken twice
        fitting = [vm for vm in _fitting(name, policy, inventory) if vm.ref not in claimed]
        claimed |= {vm.ref for vm in fitting}
        waiting += [WaitingVm(queued, vm.name, vm, _hindrance(queued, vm, gave_way)) for vm in fitting]
        if not fitting:
            waiting.append(WaitingVm(queued, name, None, f"no VM with a GPU device is called {name!r}"))
    return tuple(waiting)


def _find(name: str, inventory: Inventory) -> tuple[Vm | None, str]:
    """The VM of that name, or why there is none."""
    try:
        return inventory.find_vm(name), ""
    except (VmNotFound, VmAmbiguous) as error:
        return None, error.message


def _fitting(pattern: str, policy: Policy, inventory: Inventory) -> Iterable[Vm]:
    """The VMs that a pattern means, by name."""
    wanted = QueuedVm(pattern)
    vms = [vm for vm in inventory.vms.values() if wanted.fits(vm.name) and vm.devices and policy.pool_of(vm) is None]
    return sorted(vms, key=lambda vm: (vm.name, vm.ref))


def _hindrance(queued: QueuedVm, vm: Vm | None, gave_way: Collection[str]) -> str:
    """Why the VM does not start tonight, whatever room there is; empty = it may."""
    if vm is None or vm.power is PowerState.ON:
        return "runs already" if vm else ""
    managed = left_to_manager(vm)
    if managed is not None:
        return managed
    if vm.power is not PowerState.OFF and vm.ref not in gave_way:
        return f"is not powered off ({vm.power or 'its power state cannot be read'})"
    if vm.connected is not True or vm.unreadable or vm.devices is None or vm.template:
        return "cannot be read whole, or is not connected"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    if not queued.carried_by(vm):
        return f"carries {', '.join(vm.profiles) or 'no vGPU'}, the policy says {queued.profile}"
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


def within_counts(queue: Iterable[WaitingVm]) -> Iterator[WaitingVm]:
    """The VMs that may start, of each entry no more than its `count`."""
    queue = tuple(queue)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    for waiting in queue:
        most = waiting.queued.count
        if waiting.vm is not None and not waiting.reason and (most is None or running[waiting.queued] < most):
            running[waiting.queued] += 1
            yield waiting


def hosts_for(vm: Vm, queued: QueuedVm, world: Inventory) -> list[Host]:
    """The hosts that the VM may start on: its own first, then by name those it may be moved to."""
    own = world.host_of(vm)
    # A pin is an address of its own host, a node a number there: a bare move would leave both meaning something else.
    may_move = queued.relocate and not is_bound(vm)
    elsewhere = (host for host in world.hosts.values() if host is not own and host.gpus)
    others = list(elsewhere) if may_move and vm.power is not PowerState.SUSPENDED else []
    usable = [own, *sorted(others, key=lambda host: host.name)] if own else others
    return [host for host in usable if host.connected is True and host.in_maintenance is False]


def is_bound(vm: Vm) -> bool:
    """Whether the VM's configuration names a GPU or a NUMA node of the host it is on."""
    return bool(pins_of(vm) or (vm.extra_config or {}).get(AFFINITY_KEY))


def drs_before(policy: Policy, night: str, vm: Vm, host: Host, inventory: Inventory) -> VmDrs | None:
    """The DRS setting that the VM had before this night; None = its setting stays, or DRS does not move it.

    A run that was cut off may have changed the setting already: then the marker says what it was.
    """
    if policy.drs_override is DrsOverride.NONE:
        return None
    marked = parse_marker(vm.attributes.get(policy.marker, ""))
    if marked is not None and (marked.night, marked.role) == (night, Role.ML) and marked.drs is not None:
        return marked.drs
    cluster = inventory.clusters.get(host.cluster or "")
    if cluster is None or cluster.drs_enabled is False:
        return None
    now = cluster.drs_of(vm.ref)
    return None if now is None or now.moves_nothing else now


def unreadable_drs(policy: Policy, starts: Iterable[Start], inventory: Inventory) -> Iterator[Rejection]:
    """A refusal for each cluster of which this login cannot read what DRS does with the VMs that start there."""
    if policy.drs_override is DrsOverride.NONE:
        return
    hosts = {start.host.cluster: start for start in starts if start.host.cluster is not None}
    for ref, start in sorted(hosts.items()):
        cluster = inventory.clusters.get(ref)
        if cluster is None or (cluster.drs_enabled is not False and cluster.drs_of(start.vm.ref) is None):
            name = cluster.name if cluster is not None else ref
            rule = f"drs_override: {policy.drs_override}: what DRS does here cannot be read"
            yield Rejection(name, rule, hint="give this login read access to the cluster, or say `drs_override: none`")


def drs_overrides(before: Mapping[str, VmDrs], starts: Iterable[Start], inventory: Inventory) -> tuple[SetVmDrs, ...]:
    """The steps that keep DRS off the VMs that start, but for those that a run which was cut off has set already."""
    overrides = []
    for start in starts:
        cluster = inventory.clusters.get(start.host.cluster or "")
        if start.vm.ref in before and cluster is not None and cluster.drs_of(start.vm.ref) is not VmDrs.MANUAL:
            overrides.append(SetVmDrs(start.vm.ref, VmDrs.MANUAL))
    return tuple(overrides)


def _has_drs_of_night(taken_vm: TakenVm, inventory: Inventory) -> bool:
    """Whether the VM may still have the override of its night; another setting is somebody else's and stays."""
    if taken_vm.original.drs is None or taken_vm.vm is None:
        return False
    return inventory.drs_of(taken_vm.vm) in (VmDrs.MANUAL, None)


def drs_restored(of_nights: Iterable[TakenVm], inventory: Inventory) -> tuple[SetVmDrs, ...]:
    """The steps that give the VMs of nights the DRS setting that they had before."""
    return tuple(
        SetVmDrs(taken_vm.vm.ref, taken_vm.original.drs)
        for taken_vm in of_nights
        if taken_vm.vm is not None and taken_vm.original.drs is not None and _has_drs_of_night(taken_vm, inventory)
    )
