"""Decides which desktops a night may suspend, why the others stay, and how many of each pool stay running.

`night.py` calls it for all desktops, `guard.py` for one before it is taken.

Floors: while a night of another policy is open, the floors of its pools hold as well. Two policies may select the same
desktops. A desktop that the other night has taken no longer runs, so it does not count towards any floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.idle import Use, idleness, readings
from gpuops.advise.managed_vms import kept_by_marks
from gpuops.model.desktops.broker import NO_MACHINE
from gpuops.model.desktops.evidence import SESSION_SOURCES, Source
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import DirectPath, Policy, Pool
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.suspended_vms import role_of
from gpuops.plan.rotation.taken_vms import TakenVm, is_marked, stays_running

FloorKey = tuple[int, str]
"""Number of the policy (0 = that of the night itself), and the pool's name."""
_ONE_FLOOR: Final = "gpuops rotate restore --vm NAME brings one back; give the pools of both policies the same `floor`"


@dataclass(frozen=True, slots=True)
class Floors:
    """The floors that hold for the desktops of one night."""

    policy: Policy
    other_policies: tuple[Policy, ...] = ()
    """Other policies that have an open night in the journal."""

    def pools_of(self, vm: Vm) -> Iterator[tuple[FloorKey, Policy, Pool]]:
        """Yield the pools with a floor that select the VM, at most one of each policy."""
        for number, policy in enumerate((self.policy, *self.other_policies)):
            pool = policy.pool_of(vm)
            if pool is not None and pool.floor:
                yield (number, pool.name), policy, pool

    def count_running(self, vms: Iterable[Vm]) -> Counter[FloorKey]:
        """Count the running VMs for each floor."""
        return Counter(key for vm in vms if stays_running(vm) for key, _, _ in self.pools_of(vm))

    def objection(self, vm: Vm, running: Mapping[FloorKey, int]) -> str | None:
        """Return which floor would be broken if the VM stopped running, or None.

        `running` is the number of running desktops by floor, this VM included (`count_running`).
        """
        for key, policy, pool in self.pools_of(vm):
            if running.get(key, 0) <= pool.floor:
                of_policy = "" if policy is self.policy else f" of policy {policy.name}, whose night is open,"
                return f"floor: {pool.floor} of pool {pool.name}{of_policy} stay running"
        return None


def other_open_policies(policy: Policy, originals: Iterable[Original]) -> tuple[Policy, ...]:
    """Return the policies with another name whose nights are open: their floors hold as well.

    For a policy that was edited since its night began, only the current text counts.
    """
    policies = (original.policy for original in originals if original.policy is not None and not original.returned)
    return tuple({id(other): other for other in policies if other.name != policy.name}.values())


def floors_broken_by_others(policy: Policy, away_vms: Iterable[TakenVm], inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each pool that is below its floor because a night of another policy took desktops of it."""
    running = Floors(policy).count_running(inventory.vms.values())
    counts_by_night: Counter[tuple[str, str, str]] = Counter()
    for taken_vm in away_vms:
        vm, policy_of_night = taken_vm.vm, taken_vm.policy
        pool = policy.pool_of(vm) if vm is not None else None
        if pool is not None and policy_of_night.name != policy.name and taken_vm.original.role is not Role.ML:
            counts_by_night[pool.name, taken_vm.original.night, policy_of_night.name] += 1
    for pool in policy.pools:
        count = running[0, pool.name]  # policy 0 of `Floors` is this one
        nights = [
            f"night {night} of policy {name} has taken {number}"
            for (pool_name, night, name), number in sorted(counts_by_night.items())
            if pool_name == pool.name
        ]
        if count < pool.floor and nights:
            rule = f"floor: {pool.floor} must stay running, {count} do: {', '.join(nights)}"
            yield Rejection(f"pool {pool.name}", rule, hint=_ONE_FLOOR)


SPACE_FACTOR: Final = 1.1
SPACE_MARGIN_MIB: Final = 200
"""A suspend writes the memory of the VM and the frame buffers of its vGPUs to the folder of the VM (vSphere API
reference 5.3: suspend files). A tenth more and a margin are required, because a full datastore stops other VMs too."""

_USER_SOURCES: Final = frozenset({Source.STATE, Source.CONSOLE, *SESSION_SOURCES})
"""The sources that show whether a user works on a desktop at this moment."""

IN_MAINTENANCE: Final = "is in maintenance at the broker, and gpuops did not put it there"


@dataclass(frozen=True, slots=True)
class Survey:
    """The VMs of the pools of a policy: those that may be suspended, and a reason for each other one."""

    free_to_take: tuple[Vm, ...]
    staying: tuple[Choice, ...]
    other_vms: int
    """Number of VMs in no pool."""
    empty_pools: tuple[str, ...]
    """Pools without any VM: their folder is probably misspelt."""
    disowned_pools: tuple[tuple[str, str], ...] = ()
    """(pool, mark) of parked pools in which no desktop carries the mark of its owner."""
    machines_not_found: tuple[str, ...] = ()
    """As in `Inventory.machines_not_found`."""
    unknown_to_broker: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Gated pool -> names of its desktops for which the broker has no machine."""
    priority: Mapping[str, int] = field(default_factory=dict)
    """Desktop ref -> priority of its pool."""


def survey(
    policy: Policy,
    inventory: Inventory,
    catalog: Catalog,
    left_alone: Mapping[str, str],
    suspended: Iterable[Vm] = (),
    other_policies: tuple[Policy, ...] = (),
) -> Survey:
    """Return which desktops may be suspended now.

    `left_alone`: VM ref -> why a VM stays because of what happened to it tonight. `suspended`: the VMs that this night
    has suspended or is suspending. `other_policies`: other policies with an open night, whose floors hold as well.
    """
    # 1. Check each desktop by itself: the policy, its state and its host.
    staying: list[Choice] = []
    candidates: list[tuple[Pool, Vm]] = []
    pooled = [(pool, vm) for vm in inventory.vms.values() if (pool := policy.pool_of(vm)) is not None]
    for pool, vm in pooled:
        reason = left_alone.get(vm.ref) or reason_to_stay(policy, pool, vm, inventory)
        if reason is None:
            candidates.append((pool, vm))
        else:
            staying.append(Choice(vm.name, chosen=False, reason=reason))
    # 2. Sort by the priority of the pool, then by CPU use, so that the floor keeps the busiest desktops. The name makes
    # the order the same every night.
    candidates.sort(key=lambda candidate: (candidate[0].priority, candidate[1].cpu_usage_mhz or 0, candidate[1].name))
    # 3. Check limits that count several desktops: the floor of each pool, then the space of each datastore. A desktop
    # that the floor keeps must not use space that another one needs.
    above_floor = _above_floor(candidates, Floors(policy, other_policies), inventory, staying)
    free_mib = _free_mib(inventory, suspended, catalog)
    free_to_take = _within_space(above_floor, inventory, catalog, free_mib, staying)
    # 4. What looks like a mistake in the policy, in the marks or at the broker.
    vms_by_pool: dict[str, list[Vm]] = {}
    unknown_to_broker: dict[str, list[str]] = {}
    for pool, vm in pooled:
        vms_by_pool.setdefault(pool.name, []).append(vm)
        if pool.gated and not vm.template and vm.gate == NO_MACHINE:
            unknown_to_broker.setdefault(pool.name, []).append(vm.name)
    disowned_pools: list[tuple[str, str]] = []
    for pool in policy.pools:
        owner, vms = pool.owner, vms_by_pool.get(pool.name, ())
        may_be_taken = pool.is_taken_tonight and pool.users_kept_away
        if may_be_taken and owner is not None and vms and not any(owner.on(vm) is True for vm in vms):
            disowned_pools.append((pool.name, str(owner)))
    return Survey(
        free_to_take=tuple(free_to_take),
        staying=tuple(sorted(staying, key=lambda choice: choice.subject)),
        other_vms=len(inventory.vms) - len(pooled),
        empty_pools=tuple(pool.name for pool in policy.pools if pool.name not in vms_by_pool),
        disowned_pools=tuple(disowned_pools),
        machines_not_found=inventory.machines_not_found,
        unknown_to_broker={name: sorted(names) for name, names in unknown_to_broker.items()},
        priority={vm.ref: pool.priority for pool, vm in pooled},
    )


def reason_to_stay(policy: Policy, pool: Pool, vm: Vm, inventory: Inventory) -> str | None:
    """Return why this desktop of the pool may not be taken, without regard to other desktops, or None.

    Called when the night is planned, and again with fresh facts just before the desktop is taken.
    """
    if not pool.is_taken_tonight:
        return f"pool {pool.name} is not one of the pools of this window"
    if not pool.users_kept_away:
        return f"pool {pool.name} has `parked: false` in the policy"
    kept = kept_by_marks(policy, pool, vm)
    if kept is not None:
        return kept
    if vm.template:
        return "is a template"
    if vm.power is PowerState.OFF:
        return "is powered off"
    host = inventory.host_of(vm)
    return idleness(vm, pool.idle).objection or _cannot_stop(pool, vm, host) or _kept_by_gate(pool, vm)


def _cannot_stop(pool: Pool, vm: Vm, host: Host | None) -> str | None:
    """Return why the desktop can be neither suspended nor, where the pool allows it, shut down, or None."""
    if not (vm.has_passthrough and pool.directpath is DirectPath.SHUT_DOWN_GUEST):
        return _cannot_suspend(vm, host)
    if vm.tools_running is not True:
        return "its guest cannot be asked to shut down: VMware Tools are not running, or their state is unknown"
    return _host_trouble(host)


def no_space_for(vm: Vm, inventory: Inventory, catalog: Catalog, suspended: Iterable[Vm]) -> str | None:
    """Return why its datastores have no room for the suspend file, or None.

    None also if the desktop is shut down instead. `suspended`: the VMs that this night has suspended or is suspending.
    """
    if role_of(vm) is Role.SHUT_DOWN:
        return None  # it leaves nothing on a datastore
    free_mib = _free_mib(inventory, suspended, catalog)
    needed_mib = suspend_size_mib(vm, catalog)
    unknown = "the size of its suspend file is unknown" if needed_mib is None else None
    return _no_space(vm, needed_mib, free_mib, inventory) or unknown


def _kept_by_gate(pool: Pool, vm: Vm) -> str | None:
    """Return why its gate at the broker cannot be closed, or None.

    A gate that another person closed is left alone: gpuops only opens gates that it closed.
    """
    if not pool.gated:
        return None
    if vm.gate is None:
        return "its gate at the broker is not known"
    if vm.gate.refusal:
        return vm.gate.refusal
    if vm.gate.closed and not is_marked(vm):
        return IN_MAINTENANCE
    if vm.gate.spare_machines > pool.floor:
        return (
            f"the broker keeps {vm.gate.spare_machines} spare machines of its pool powered on, and would resume others:"
            f" pool {pool.name} needs `floor: {vm.gate.spare_machines}` or more"
        )
    return None


def _host_trouble(host: Host | None) -> str | None:
    """Return why no VM of this host can be stopped now, or None."""
    if host is None or host.connected is not True:
        return "its host is not connected, or not known"
    if host.in_maintenance is not False:
        return f"{host.name} is in maintenance mode, or its mode is unknown"
    return None


def _cannot_suspend(vm: Vm, host: Host | None) -> str | None:
    """Return why the VM cannot be suspended, or None.

    Sources: vSphere API, HostSharedGpuCapabilities.suspendSupported; VMware vSphere 8 documentation: a passthrough
    device other than a vGPU excludes suspend for the VM. (assumption: suspend-refusal)
    """
    if vm.devices is None:
        return "its devices cannot be read"
    if vm.has_passthrough:
        return "has a DirectPath device: such a VM cannot be suspended"
    if not vm.vgpus:
        return "has no vGPU: suspending it frees none"
    host_trouble = _host_trouble(host)
    if host is None or host_trouble is not None:
        return host_trouble
    for profile in vm.profiles:
        offered = host.offers(profile)
        if offered is None or offered.suspend is not True:
            return f"{host.name} does not report that {profile} can be suspended"
    return None


def suspendable(vms: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> frozenset[str]:
    """Return the VMs (refs) that can be suspended together: their devices and hosts allow it, and their datastores have
    room for the files."""
    candidates = [vm for vm in vms if _cannot_suspend(vm, inventory.host_of(vm)) is None]
    return frozenset(
        vm.ref for vm in _within_space(candidates, inventory, catalog, _free_mib(inventory, (), catalog), [])
    )


def _above_floor(
    candidates: Iterable[tuple[Pool, Vm]], floors: Floors, inventory: Inventory, staying: list[Choice]
) -> list[Vm]:
    """Return the candidates, in their order, without which each floor still holds; add the others to `staying`."""
    running = floors.count_running(inventory.vms.values())
    above_floor: list[Vm] = []
    for _, vm in candidates:
        reason = floors.objection(vm, running)
        if reason is None:
            running.subtract(key for key, _, _ in floors.pools_of(vm))
            above_floor.append(vm)
        else:
            staying.append(Choice(vm.name, chosen=False, reason=reason))
    return above_floor


def ready_desktops(policy: Policy, vms: Iterable[Vm]) -> Counter[str]:
    """Count the desktops of each pool that are ready for users: they run, are not in use, and have no closed gate.

    How long they have been unused does not matter to the next user.
    """
    counts: Counter[str] = Counter()
    for vm in vms:
        pool = policy.pool_of(vm)
        if pool is not None and stays_running(vm) and not vm.template and not _is_gated(vm, pool):
            uses = {reading.says for reading in readings(vm, pool.idle) if reading.source in _USER_SOURCES}
            counts[pool.name] += uses == {Use.IDLE}  # every source says so, and there is one
    return counts


def _is_gated(vm: Vm, pool: Pool) -> bool:
    """Return whether the gate of the desktop is closed, or may be."""
    return pool.gated and (vm.gate is None or vm.gate.closed is not False)


def running_desktops(policy: Policy, vms: Iterable[Vm]) -> Counter[str]:
    """Count the running desktops of each pool, in use or not, without those behind a closed gate."""
    counts: Counter[str] = Counter()
    for vm in vms:
        pool = policy.pool_of(vm)
        if pool is not None and stays_running(vm) and not vm.template and not _is_gated(vm, pool):
            counts[pool.name] += 1
    return counts


@dataclass(frozen=True, slots=True)
class KeptForUsers:
    """The number of desktops of each pool that users have now, and the number that they should have."""

    policy: Policy
    ready: Mapping[str, int]
    """Pool -> number of running desktops that are not in use."""
    running: Mapping[str, int]
    """Pool -> number of running desktops, in use or not."""
    expected: Mapping[str, int]
    """Pool -> number of desktops that should run by the forecast; pools without a forecast are missing."""

    @classmethod
    def of(cls, policy: Policy, vms: Collection[Vm], expected: Mapping[str, int]) -> KeptForUsers:
        ready = ready_desktops(policy, vms) if any(pool.ready for pool in policy.pools) else {}
        return cls(policy, ready, running_desktops(policy, vms) if expected else {}, expected)

    def missing(self, pool: Pool) -> int:
        """Return how many more desktops of the pool should run; negative = more run than needed."""
        too_few = pool.ready - self.ready.get(pool.name, 0)
        if pool.name not in self.expected:
            return too_few
        return max(too_few, self.expected[pool.name] - self.running.get(pool.name, 0))

    def objection(self, desktops: Iterable[Vm]) -> str:
        """Return which pool would have too few desktops without these; empty = none."""
        counts = Counter(pool.name for vm in desktops if (pool := self.policy.pool_of(vm)) is not None)
        for pool in self.policy.pools:
            fewer = counts[pool.name]
            left_ready, left_running = self.ready.get(pool.name, 0) - fewer, self.running.get(pool.name, 0) - fewer
            expected = self.expected.get(pool.name)
            if pool.ready and fewer and left_ready < pool.ready:
                return (
                    f"{max(left_ready, 0)} of pool {pool.name} would be left ready for users, {pool.ready} are required"
                )
            if fewer and expected is not None and left_running < expected:
                left_text = f"{max(left_running, 0)} of pool {pool.name} would be left running"
                return f"{left_text}, {expected} are expected to be needed"
        return ""


def _free_mib(inventory: Inventory, suspended: Iterable[Vm], catalog: Catalog) -> dict[str, int | None]:
    """Map datastore ref -> free space that is not reserved for the desktops of this night; None = it cannot be read.

    `suspend_size_mib` is more than the state that is written. The difference stays reserved after the suspend, so that
    a run that begins again has no more room than the one before it.
    """
    free_mib = {ref: store.free_mib for ref, store in inventory.datastores.items() if store.accessible is True}
    for vm in suspended:
        needed_mib, state_mib = suspend_size_mib(vm, catalog), _state_mib(vm, catalog)
        if needed_mib is None or state_mib is None:
            continue
        # The free space does not include what is written. During the suspend, it is unknown how much that is: count 0.
        written_mib = state_mib if vm.power is PowerState.SUSPENDED else 0
        for ref in vm.datastores:
            store_mib = free_mib.get(ref)
            if store_mib is not None:
                free_mib[ref] = store_mib - (needed_mib - written_mib)
    return free_mib


def _within_space(
    vms: Iterable[Vm], inventory: Inventory, catalog: Catalog, free_mib: dict[str, int | None], staying: list[Choice]
) -> list[Vm]:
    """Return the VMs whose suspend files fit one after the other; add the others to `staying`. Reduces `free_mib`."""
    fitting: list[Vm] = []
    for vm in vms:
        if role_of(vm) is Role.SHUT_DOWN:
            fitting.append(vm)  # it leaves nothing on a datastore
            continue
        needed_mib = suspend_size_mib(vm, catalog)
        reason = _no_space(vm, needed_mib, free_mib, inventory)
        if reason is not None or needed_mib is None:
            staying.append(Choice(vm.name, chosen=False, reason=reason or "the size of its suspend file is unknown"))
            continue
        for ref in vm.datastores:
            free_mib[ref] = (free_mib[ref] or 0) - needed_mib
        fitting.append(vm)
    return fitting


def _no_space(vm: Vm, needed_mib: int | None, free_mib: Mapping[str, int | None], inventory: Inventory) -> str | None:
    """Return which of its datastores has too little room, or None.

    Every datastore must have room, since it is unknown which one gets the suspend file.
    """
    if not vm.datastores:
        return "its datastore is unknown"
    for ref in vm.datastores:
        store_mib = free_mib.get(ref)
        name = inventory.datastores[ref].name if ref in inventory.datastores else ref
        if store_mib is None:
            return f"the free space of datastore {name} is unknown"
        if needed_mib is not None and store_mib < needed_mib + SPACE_MARGIN_MIB:
            return f"datastore {name}: its suspend file needs {needed_mib} MiB, {max(store_mib, 0)} free"
    return None


def suspend_size_mib(vm: Vm, catalog: Catalog) -> int | None:
    """Return the most that suspending the VM writes, in MiB; None = it is unknown."""
    state_mib = _state_mib(vm, catalog)
    return None if state_mib is None else round(SPACE_FACTOR * state_mib)


def _state_mib(vm: Vm, catalog: Catalog) -> int | None:
    """Return the memory of the VM and the frame buffers of its vGPUs, in MiB; None = it is unknown."""
    profiles = [catalog.profile(name) for name in vm.profiles]
    if vm.memory_mib is None or any(profile is None for profile in profiles):
        return None
    return vm.memory_mib + sum(profile.framebuffer_mib for profile in profiles if profile is not None)
