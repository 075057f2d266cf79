"""Which desktops a night may suspend, and why the others stay. `night.py` asks for all of them, `guard.py` for one
before it is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.evidence import Use, readings
from gpuops.advise.idle import idleness
from gpuops.advise.left_alone import kept_by_marks
from gpuops.model.desktops.evidence import SESSION_SOURCES, Source
from gpuops.model.desktops.gate import NO_MACHINE
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation import DirectPath, Policy, Pool
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Choice
from gpuops.plan.placement.return_order import role_of
from gpuops.plan.rotation.nights.floors import Floors
from gpuops.plan.rotation.taken_vms import is_marked, stays_running

SPACE_FACTOR: Final = 1.1
SPACE_MARGIN_MIB: Final = 200
"""A suspend writes the VM's memory and its vGPUs' frame buffers beside the VM (vSphere API reference 5.3: suspend
files). A tenth more and a margin are required, since a datastore that is full stops other VMs too."""

_OF_USERS: Final = frozenset({Source.STATE, Source.CONSOLE, *SESSION_SOURCES})
"""What tells whether somebody uses a desktop at this moment."""

IN_MAINTENANCE: Final = "is in maintenance at the broker, and no night has put it there"


@dataclass(frozen=True, slots=True)
class Survey:
    """Every VM of the policy's pools: those that may be suspended, and a reason for each that stays."""

    free_to_take: tuple[Vm, ...]
    kept: tuple[Choice, ...]
    other_vms: int
    """VMs that are in no pool."""
    empty_pools: tuple[str, ...]
    """Pools that no VM is in: likely a misspelt folder."""
    disowned_pools: tuple[tuple[str, str], ...] = ()
    """(pool, mark) of parked pools none of whose desktops carries its owner's mark."""
    machines_not_found: tuple[str, ...] = ()
    """As in the inventory."""
    unknown_to_broker: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Gated pool -> the names of its desktops that no machine of the broker may be."""
    priority: Mapping[str, int] = field(default_factory=dict)
    """Of each desktop's pool, by the desktop's ref."""


def survey(
    policy: Policy,
    inventory: Inventory,
    catalog: Catalog,
    left_alone: Mapping[str, str],
    away: Iterable[Vm] = (),
    others: tuple[Policy, ...] = (),
) -> Survey:
    """Which desktops may be suspended now.

    `left_alone`: VM ref -> why it stays for what happened to it tonight; `away`: the VMs that tonight has suspended, or
    is suspending; `others`: other policies that have an open night, whose floors hold as well.
    """
    # 1. Each desktop by itself: what the policy, its state and its host say.
    kept: list[Choice] = []
    candidates: list[tuple[Pool, Vm]] = []
    pooled = [(pool, vm) for vm in inventory.vms.values() if (pool := policy.pool_of(vm)) is not None]
    for pool, vm in pooled:
        reason = left_alone.get(vm.ref) or reason_to_stay(policy, pool, vm, inventory)
        if reason is None:
            candidates.append((pool, vm))
        else:
            kept.append(Choice(vm.name, chosen=False, reason=reason))
    # 2. The order: by pool, then the idlest first, so that the floor keeps the busiest; the name makes it the same
    # every night.
    candidates.sort(key=lambda candidate: (candidate[0].priority, candidate[1].cpu_usage_mhz or 0, candidate[1].name))
    # 3. What counts together: the floor of each pool, and then the space on each datastore. A desktop that the floor
    # keeps must not use up space that another one needs.
    free_mib = _free_mib(inventory, away, catalog)
    floors = Floors(policy, others)
    taken = _within_space(_above_floor(candidates, floors, inventory, kept), inventory, catalog, free_mib, kept)
    seen = {pool.name for pool, _ in pooled}
    return Survey(
        free_to_take=tuple(taken),
        kept=tuple(sorted(kept, key=lambda choice: choice.subject)),
        other_vms=len(inventory.vms) - len(pooled),
        empty_pools=tuple(pool.name for pool in policy.pools if pool.name not in seen),
        disowned_pools=_disowned(policy, pooled),
        machines_not_found=inventory.machines_not_found,
        unknown_to_broker=_unknown_to_broker(pooled),
        priority={vm.ref: pool.priority for pool, vm in pooled},
    )


def _disowned(policy: Policy, pooled: Sequence[tuple[Pool, Vm]]) -> tuple[tuple[str, str], ...]:
    owned = {pool.name for pool, vm in pooled if pool.owner is not None and pool.owner.on(vm) is True}
    seen = {pool.name for pool, _ in pooled}
    return tuple(
        (pool.name, str(pool.owner))
        for pool in policy.pools
        if pool.is_taken_tonight and pool.users_kept_away and pool.owner is not None and pool.name in seen - owned
    )


def _unknown_to_broker(pooled: Iterable[tuple[Pool, Vm]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pool, vm in pooled:
        if pool.gated and not vm.template and vm.gate == NO_MACHINE:
            found.setdefault(pool.name, []).append(vm.name)
    return {name: sorted(names) for name, names in found.items()}


def reason_to_stay(policy: Policy, pool: Pool, vm: Vm, inventory: Inventory) -> str | None:
    """Why this desktop of the pool may not be taken, whatever the others do; None = nothing speaks against it.

    Asked when the night is planned, and of facts read anew just before the desktop is taken.
    """
    return _kept_by_policy(policy, pool, vm) or _kept_by_state(pool, vm, inventory) or _kept_by_gate(pool, vm)


def no_space_for(vm: Vm, inventory: Inventory, catalog: Catalog, away: Iterable[Vm]) -> str | None:
    """Why its datastores have no room for what suspending it writes; None = they have, or it is shut down instead.

    `away`: what tonight has suspended, or is suspending.
    """
    if role_of(vm) is Role.SHUT_DOWN:
        return None  # it leaves nothing on a datastore
    free_mib = _free_mib(inventory, away, catalog)
    needed_mib = suspend_size_mib(vm, catalog)
    unknown = "the size of its suspend file is unknown" if needed_mib is None else None
    return _no_space(vm, needed_mib, free_mib, inventory) or unknown


def _kept_by_policy(policy: Policy, pool: Pool, vm: Vm) -> str | None:
    if not pool.is_taken_tonight:
        return f"pool {pool.name} is not one of the pools of this window"
    if not pool.users_kept_away:
        return f"pool {pool.name} is not declared parked"
    return kept_by_marks(policy, pool, vm)


def _kept_by_state(pool: Pool, vm: Vm, inventory: Inventory) -> str | None:
    if vm.template:
        return "is a template"
    if vm.power is PowerState.OFF:
        return "is powered off"
    return idleness(vm, pool.idle).objection or _cannot_be_taken(pool, vm, inventory.host_of(vm))


def _kept_by_gate(pool: Pool, vm: Vm) -> str | None:
    """Why its gate at the broker cannot be closed, or is closed by somebody else: only our own are opened again."""
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


def _cannot_be_taken(pool: Pool, vm: Vm, host: Host | None) -> str | None:
    if vm.has_passthrough and pool.directpath is DirectPath.SHUT_DOWN_GUEST:
        return _cannot_shut_down(vm, host)
    return _cannot_suspend(vm, host)


def _cannot_shut_down(vm: Vm, host: Host | None) -> str | None:
    if vm.tools_running is not True:
        return "its guest cannot be asked to shut down: VMware Tools do not run, or do not tell"
    return _host_trouble(host)


def _host_trouble(host: Host | None) -> str | None:
    """Why nothing can be sent to the VM's host; None = it can."""
    if host is None or host.connected is not True:
        return "its host is not connected, or not known"
    if host.in_maintenance is not False:
        return f"{host.name} is in maintenance mode, or does not tell"
    return None


def _cannot_suspend(vm: Vm, host: Host | None) -> str | None:
    """Sources: vSphere API, HostSharedGpuCapabilities.suspendSupported; VMware vSphere 8 documentation: a passthrough
    device other than a vGPU excludes suspend for the whole VM. (assumption: suspend-refusal)"""
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
            return f"{host.name} does not say that {profile} can be suspended"
    return None


def suspendable(vms: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> frozenset[str]:
    """Those of these VMs (refs) that can be suspended together: their devices and hosts allow it, and their datastores
    have room for the files."""
    able = [vm for vm in vms if _cannot_suspend(vm, inventory.host_of(vm)) is None]
    return frozenset(vm.ref for vm in _within_space(able, inventory, catalog, _free_mib(inventory, (), catalog), []))


def _above_floor(
    candidates: Iterable[tuple[Pool, Vm]], floors: Floors, inventory: Inventory, kept: list[Choice]
) -> list[Vm]:
    """The candidates, in their order, as long as more run than each floor asks for; the others go to `kept`."""
    running = floors.count_running(inventory.vms.values())
    taken: list[Vm] = []
    for _, vm in candidates:
        reason = floors.objection(vm, running)
        if reason is None:
            running.subtract(key for key, _, _ in floors.pools_of(vm))
            taken.append(vm)
        else:
            kept.append(Choice(vm.name, chosen=False, reason=reason))
    return taken


def ready_desktops(policy: Policy, vms: Iterable[Vm]) -> Counter[str]:
    """How many desktops of each pool are ready for users: they run, nobody uses them now, and no gate is before them.

    How long nobody has used them is of no matter to the next user.
    """
    found: Counter[str] = Counter()
    for vm in vms:
        pool = policy.pool_of(vm)
        if pool is not None and stays_running(vm) and not vm.template and _is_free_for_users(vm, pool):
            found[pool.name] += 1
    return found


def _is_gated(vm: Vm, pool: Pool) -> bool:
    """Whether a gate keeps users from it, or may."""
    return pool.gated and (vm.gate is None or vm.gate.closed is not False)


def _is_free_for_users(vm: Vm, pool: Pool) -> bool:
    if _is_gated(vm, pool):
        return False
    told = {reading.says for reading in readings(vm, pool.idle) if reading.source in _OF_USERS}
    return told == {Use.IDLE}


def running_desktops(policy: Policy, vms: Iterable[Vm]) -> Counter[str]:
    """How many desktops of each pool run for users, whoever uses them; one behind a gate does not."""
    found: Counter[str] = Counter()
    for vm in vms:
        pool = policy.pool_of(vm)
        if pool is not None and stays_running(vm) and not vm.template and not _is_gated(vm, pool):
            found[pool.name] += 1
    return found


@dataclass(frozen=True, slots=True)
class KeptForUsers:
    """How many desktops of each pool users find now, and how many they are to find."""

    policy: Policy
    ready: Mapping[str, int]
    """Pool -> how many run, unused."""
    running: Mapping[str, int]
    """Pool -> how many run, whoever uses them."""
    expected: Mapping[str, int]
    """Pool -> how many are to run by a forecast; where there is none nothing is said."""

    @classmethod
    def of(cls, policy: Policy, vms: Collection[Vm], expected: Mapping[str, int]) -> KeptForUsers:
        ready = ready_desktops(policy, vms) if any(pool.ready for pool in policy.pools) else {}
        return cls(policy, ready, running_desktops(policy, vms) if expected else {}, expected)

    def missing(self, pool: Pool) -> int:
        """So many more of the pool are to run; negative = that many are more than needed."""
        too_few = pool.ready - self.ready.get(pool.name, 0)
        if pool.name not in self.expected:
            return too_few
        return max(too_few, self.expected[pool.name] - self.running.get(pool.name, 0))

    def objection(self, taken: Iterable[Vm]) -> str:
        """Which pool would have too few of them without these; empty = none."""
        counts = Counter(pool.name for vm in taken if (pool := self.policy.pool_of(vm)) is not None)
        for pool in self.policy.pools:
            fewer = counts[pool.name]
            left, run = self.ready.get(pool.name, 0) - fewer, self.running.get(pool.name, 0) - fewer
            expected = self.expected.get(pool.name)
            if pool.ready and fewer and left < pool.ready:
                return f"{max(left, 0)} of pool {pool.name} would be left ready for users, {pool.ready} are to be"
            if fewer and expected is not None and run < expected:
                return f"{max(run, 0)} of pool {pool.name} would be left running, {expected} are expected to be needed"
        return ""


def _free_mib(inventory: Inventory, away: Iterable[Vm], catalog: Catalog) -> dict[str, int | None]:
    """Datastore ref -> its space that is free and not reserved for this night's desktops; None = it cannot be read.

    The tenth more stays reserved for each desktop after its file is written, so that a run that begins again has no
    more room than the one before it.
    """
    free = {ref: store.free_mib for ref, store in inventory.datastores.items() if store.accessible is True}
    for vm in away:
        needed_mib, written_mib = suspend_size_mib(vm, catalog), _written_mib(vm, catalog)
        for ref in vm.datastores:
            space = free.get(ref)
            if space is not None and needed_mib is not None and written_mib is not None:
                free[ref] = space - (needed_mib - written_mib)
    return free


def _within_space(
    vms: Iterable[Vm], inventory: Inventory, catalog: Catalog, free_mib: dict[str, int | None], kept: list[Choice]
) -> list[Vm]:
    """Those whose suspend file has room beside those before them, which use up `free_mib`; the others go to `kept`."""
    taken: list[Vm] = []
    for vm in vms:
        if role_of(vm) is Role.SHUT_DOWN:
            taken.append(vm)  # it leaves nothing on a datastore
            continue
        needed_mib = suspend_size_mib(vm, catalog)
        reason = _no_space(vm, needed_mib, free_mib, inventory)
        if reason is not None or needed_mib is None:
            kept.append(Choice(vm.name, chosen=False, reason=reason or "the size of its suspend file is unknown"))
            continue
        for ref in vm.datastores:
            free_mib[ref] = (free_mib[ref] or 0) - needed_mib
        taken.append(vm)
    return taken


def _no_space(vm: Vm, needed_mib: int | None, free_mib: Mapping[str, int | None], inventory: Inventory) -> str | None:
    """Which of its datastores has too little room; None = none. Each must have room: where the suspend file goes is not
    read."""
    if not vm.datastores:
        return "its datastore is unknown"
    for ref in vm.datastores:
        free = free_mib.get(ref)
        name = inventory.datastores[ref].name if ref in inventory.datastores else ref
        if free is None:
            return f"the free space of datastore {name} is unknown"
        if needed_mib is not None and free < needed_mib + SPACE_MARGIN_MIB:
            return f"datastore {name}: its suspend file needs {needed_mib} MiB, {max(free, 0)} free"
    return None


def suspend_size_mib(vm: Vm, catalog: Catalog) -> int | None:
    """The MiB that suspending the VM writes at most; None = not known."""
    state_mib = _state_mib(vm, catalog)
    return None if state_mib is None else round(SPACE_FACTOR * state_mib)


def _written_mib(vm: Vm, catalog: Catalog) -> int | None:
    """What of that is on its datastores already; of a suspend that is under way nothing is counted."""
    return _state_mib(vm, catalog) if vm.power is PowerState.SUSPENDED else 0


def _state_mib(vm: Vm, catalog: Catalog) -> int | None:
    """Its memory and its vGPUs' frame buffers; None = not known."""
    profiles = [catalog.profile(name) for name in vm.profiles]
    if vm.memory_mib is None or any(profile is None for profile in profiles):
        return None
    return vm.memory_mib + sum(profile.framebuffer_mib for profile in profiles if profile is not None)
