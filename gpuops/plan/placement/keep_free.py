"""Keeps vGPUs of a profile free: after a VM has its place, so many more of it must be able to start in that cluster.

`select.py` and `multi_node.py` ask it of each place. A VM that takes none of them away is let in even where fewer are
free already. Counted is what `gpuops capacity` counts as sure (`advise/room.py`); a VM that starts takes from the GPUs
it is expected on, and as much as a VM on several GPUs may have on any of them. A host of no cluster is one of its own.

What is reserved for VMs of others (`reserved.py`) stays free in the same way, whatever the request says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from gpuops.advise.capacity import total
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.advise.room import Rooms
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.device_keys import FIRST_DEVICE_KEY
from gpuops.model.vcenter.host import Cluster, DeviceBinding, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm, pin_key
from gpuops.plan.core.command_line import Option, command, hosts_called
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import cluster_name, gpu_hosts
from gpuops.plan.placement.host_filters import bars, behind
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.reserved import is_reserved_in, place_name, reserved_left, reserved_refusal
from gpuops.plan.placement.suspended_vms import host_with_claims
from gpuops.plan.placement.wanted import KeepFree, KeptProfile, Wanted, WantsVgpu

KeepFreeOption = Annotated[
    tuple[str, ...],
    Option("Leave room for N more vGPUs of the profile in the VM's cluster. May be repeated.", "PROFILE=N"),
]
_SHAPE_HINT: Final = "write PROFILE=N: a100-3-20c=4"


def kept_profiles(given: Iterable[str]) -> tuple[KeptProfile, ...]:
    """What the values of --keep-free say, with the names as they were typed. Raises UsageError."""
    found: dict[str, KeptProfile] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"--keep-free {text!r} is not PROFILE=N", hint=_SHAPE_HINT)
        if not (number.isascii() and number.isdigit()):
            raise UsageError(f"--keep-free {text!r}: {number!r} is not a whole number", hint=_SHAPE_HINT)
        if name in found:
            raise UsageError(f"--keep-free names {name} twice", hint="say it once, with one number")
        found[name] = KeptProfile(name.strip(), int(number))
    return tuple(found.values())


def once(kept: Iterable[KeptProfile]) -> tuple[KeptProfile, ...]:
    """The same, where no profile is meant twice. Raises UsageError."""
    found: dict[str, KeptProfile] = {}
    for each in kept:
        if each.profile in found:
            raise UsageError(f"--keep-free names {each.profile} twice", hint="say it once, with one number")
        found[each.profile] = each
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class KeptCount:
    """What is left of a profile in a cluster, or on a host of none, and how many there were before."""

    profile: str
    count: int
    where: str
    before: int
    after: int


def kept_counts(keep: KeepFree, before: Inventory, after: Inventory, catalog: Catalog) -> Iterator[KeptCount]:
    """For each profile that is kept the clusters that had room for it."""
    for kept in keep.profiles:
        seen: set[str] = set()
        for host in gpu_hosts(before):
            where = host.cluster or host.ref
            if where not in seen:
                seen.add(where)
                was = FreeSlots(before, catalog, keep.claims).in_cluster_of(host, kept.profile)
                if was:
                    now = FreeSlots(after, catalog, keep.claims).in_cluster_of(host, kept.profile)
                    yield KeptCount(kept.profile, kept.count, place_name(host, before), was, now)


@dataclass(frozen=True, slots=True)
class _KnownCount:
    """An answer, and for what: as long as these are the very same objects it holds."""

    host: Host
    vms: tuple[Vm, ...]
    states: tuple[GpuState, ...]
    cluster: Cluster | None
    free: int

    def is_of(self, host: Host, vms: tuple[Vm, ...], states: tuple[GpuState, ...], cluster: Cluster | None) -> bool:
        return self.host is host and self.vms is vms and self.states is states and self.cluster is cluster


@dataclass(frozen=True, slots=True)
class FreeSlots:
    """How many vGPUs of a profile can surely still start in a snapshot."""

    inventory: Inventory
    catalog: Catalog
    claims: bool
    """Whether suspended VMs count as if they were back."""

    def in_cluster_of(self, host: Host, profile: str) -> int:
        """On all hosts of the host's cluster; on the host alone where it is in none."""
        if host.cluster is None:
            return self.on(host, profile)
        return sum(self.on(each, profile) for each in self.inventory.hosts.values() if each.cluster == host.cluster)

    def on(self, host: Host, profile: str) -> int:
        """On this host."""
        if not host.gpus or (host.profiles is not None and host.offers(profile) is None):
            return 0
        answers = self.inventory.worked_out.setdefault((FreeSlots, profile, self.claims), {})
        assert isinstance(answers, dict), "nobody else has this key"
        vms, states = self.inventory.vms_on(host), gpu_states(host, self.inventory, self.catalog)
        cluster = self.inventory.clusters.get(host.cluster or "")
        known = answers.get(host.ref)
        if isinstance(known, _KnownCount) and known.is_of(host, vms, states, cluster):
            return known.free
        known = answers[host.ref] = _KnownCount(host, vms, states, cluster, self._count(host, profile))
        return known.free

    def _count(self, host: Host, profile: str) -> int:
        world = host_with_claims(host, self.inventory, self.catalog) if self.claims else self.inventory
        there, rooms = world.hosts[host.ref], Rooms(self.catalog)
        free = [rooms.on(state, (profile,)) for state in gpu_states(there, world, self.catalog)]
        found = total([slots[profile] for slots in free if profile in slots])
        return behind([*bars(there, world)], found).at_least


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """What is to stay free, asked of one place of a VM after another."""

    wanted: Wanted
    inventory: Inventory
    catalog: Catalog
    _free: dict[tuple[str, str], int] = field(default_factory=dict)
    """Counts by profile and cluster, kept because many places are of one cluster."""

    def refusal(self, host: Host, seats: Mapping[int, PciAddress]) -> Rejection | None:
        """Why the VM may not have these GPUs: fewer than are to be kept, and than now, would be left; None = it may.

        Of several profiles the first one is told.
        """
        then: FreeSlots | None = None
        for kept in self.wanted.keep_free.profiles:
            free = self._free_in_cluster(host, kept.profile)
            if free - self.free_on(host, kept.profile) >= kept.count:
                continue  # whatever it takes of this host, the others have enough
            then = then or replace(self._now, inventory=self._with_vm(host, seats))
            left = free + sum(
                then.on(each, kept.profile) - self.free_on(each, kept.profile) for each in self._touched(host)
            )
            if left < min(free, kept.count):
                return _refused(kept, left, host, self.inventory)
        return self._takes_reserved(host, seats)

    def keeps(self, host: Host) -> bool:
        """Whether anything is to stay free in the host's cluster."""
        return bool(self.wanted.keep_free.profiles) or is_reserved_in(host, self.inventory)

    def _takes_reserved(self, host: Host, seats: Mapping[int, PciAddress]) -> Rejection | None:
        if not is_reserved_in(host, self.inventory):
            return None
        after = self._with_vm(host, seats)
        left = reserved_left([host], self.inventory, after, self.catalog)
        return next((reserved_refusal(each, host) for each in left if each.too_few), None)

    def spare(self, host: Host, kept: KeptProfile) -> int:
        """How many of the profile the VM may take away in the host's cluster."""
        return max(0, self._free_in_cluster(host, kept.profile) - kept.count)

    def free_on(self, host: Host, profile: str) -> int:
        """How many there are on the host now."""
        return self._now.on(host, profile)

    @property
    def _now(self) -> FreeSlots:
        return FreeSlots(self.inventory, self.catalog, self.wanted.keep_free.claims)

    def _free_in_cluster(self, host: Host, profile: str) -> int:
        key = (profile, host.cluster or host.ref)
        if key not in self._free:
            self._free[key] = self._now.in_cluster_of(host, profile)
        return self._free[key]

    def _touched(self, host: Host) -> Iterator[Host]:
        """The hosts of that cluster that the VM comes to, and that it goes from."""
        yield host
        own = self.inventory.host_of(self.wanted.vm)
        if own is not None and own.ref != host.ref and own.cluster is not None and own.cluster == host.cluster:
            yield own

    def _with_vm(self, host: Host, seats: Mapping[int, PciAddress]) -> Inventory:
        """The snapshot once the VM runs there, with its vGPUs and the GPUs that are given to it whole."""
        vm = self.wanted.vm
        vgpus = [each for each in self.wanted.demands if isinstance(each, WantsVgpu) and each.ordinal in seats]
        whole = [
            seats[each.ordinal]
            for each in self.wanted.demands
            if not isinstance(each, WantsVgpu) and each.ordinal in seats
        ]
        there = replace(
            vm,
            host=host.ref,
            power=PowerState.ON,
            memory_reservation_mib=vm.memory_mib,
            devices=tuple(VgpuDevice(FIRST_DEVICE_KEY + number, each.profile) for number, each in enumerate(vgpus)),
            extra_config={pin_key(number): str(seats[each.ordinal]) for number, each in enumerate(vgpus)},
        )
        taken = take(there, release(vm, self.inventory), self.catalog)
        pins = {pin_key(number): str(each.pin) for number, each in enumerate(vgpus) if each.pin is not None}
        taken = taken.with_vm(replace(taken.vms[vm.ref], extra_config=pins))  # the host chooses the other GPUs itself
        holding = taken.hosts[host.ref]
        bindings = (*holding.bindings, *(DeviceBinding(address, vm.ref) for address in whole))
        return taken.with_hosts([replace(holding, bindings=bindings)]) if whole else taken


def _refused(kept: KeptProfile, left: int, host: Host, inventory: Inventory) -> Rejection:
    cluster = cluster_name(host, inventory)
    where = f"in cluster {cluster}" if cluster else "on it"
    rule = f"vGPUs of {kept.profile} left free {where} afterwards (--keep-free)"
    scope = {"cluster": cluster} if cluster else {"host": hosts_called(host.name)}
    hint = (
        f"{command('capacity', profile=kept.profile, **scope)} shows where they are; a lower --keep-free lets it start"
    )
    return Rejection(host.name, rule, kept.count, left, hint=hint)
