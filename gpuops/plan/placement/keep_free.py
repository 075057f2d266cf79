"""Keeps vGPUs of a profile free: once a VM has its place, so many more of them must be able to start in its cluster.

`select.py` and `multi_node.py` check each place with it. A VM that takes none of these vGPUs away is admitted even if
fewer are free already. What `gpuops capacity` counts as sure is counted (`advise/room.py`); a VM that starts takes from
the GPUs it is expected on, and as much as a VM on several GPUs may have on any of them. A host outside any cluster
counts as a cluster of its own.

What vCenter reserves for other VMs (`reserved_slots.py`) stays free in the same way, whatever the request says.
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
from gpuops.model.vcenter.host import Cluster, DeviceBinding, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import FIRST_DEVICE_KEY, PowerState, VgpuDevice, Vm, pin_key
from gpuops.plan.core.command_line import Option, command, hosts_called
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import cluster_name, gpu_hosts
from gpuops.plan.placement.host_filters import bars, limit_slots
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.reserved_slots import is_reserved_in, place_name, reserved_left, reserved_refusal
from gpuops.plan.placement.suspended_vms import host_with_claims
from gpuops.plan.placement.vm_demand import KeepFree, KeptProfile, Wanted, WantsVgpu

KeepFreeOption = Annotated[
    tuple[str, ...],
    Option("Leave room for N more vGPUs of the profile in the VM's cluster. May be repeated.", "PROFILE=N"),
]
_SHAPE_HINT: Final = "write PROFILE=N: a100-3-20c=4"


def kept_profiles(texts: Iterable[str]) -> tuple[KeptProfile, ...]:
    """Parse the values of --keep-free, with the profile names as they were typed. Raises UsageError."""
    by_name: dict[str, KeptProfile] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"--keep-free {text!r} is not PROFILE=N", hint=_SHAPE_HINT)
        if not (number.isascii() and number.isdigit()):
            raise UsageError(f"--keep-free {text!r}: {number!r} is not a whole number", hint=_SHAPE_HINT)
        if name in by_name:
            raise UsageError(f"--keep-free names {name} twice", hint="say it once, with one number")
        by_name[name] = KeptProfile(name.strip(), int(number))
    return tuple(by_name.values())


def once(kept_profiles: Iterable[KeptProfile]) -> tuple[KeptProfile, ...]:
    """Return the kept profiles, if each profile occurs once. Raises UsageError."""
    by_profile: dict[str, KeptProfile] = {}
    for kept_profile in kept_profiles:
        if kept_profile.profile in by_profile:
            raise UsageError(f"--keep-free names {kept_profile.profile} twice", hint="say it once, with one number")
        by_profile[kept_profile.profile] = kept_profile
    return tuple(by_profile.values())


@dataclass(frozen=True, slots=True)
class KeptCount:
    """How many vGPUs of a profile are free in a cluster, or on a host outside any cluster, before and after a plan."""

    profile: str
    count: int
    where: str
    before: int
    after: int


def kept_counts(keep: KeepFree, before: Inventory, after: Inventory, catalog: Catalog) -> Iterator[KeptCount]:
    """Yield the counts of each kept profile in each cluster that had room for it."""
    for kept_profile in keep.profiles:
        counted_places: set[str] = set()
        for host in gpu_hosts(before):
            where = host.cluster or host.ref
            if where not in counted_places:
                counted_places.add(where)
                slots_before = FreeSlots(before, catalog, keep.claims).in_cluster_of(host, kept_profile.profile)
                if slots_before:
                    slots_after = FreeSlots(after, catalog, keep.claims).in_cluster_of(host, kept_profile.profile)
                    yield KeptCount(
                        kept_profile.profile, kept_profile.count, place_name(host, before), slots_before, slots_after
                    )


@dataclass(frozen=True, slots=True)
class _KnownCount:
    """A cached count. It is valid as long as the host, its VMs, its GPU states and its cluster are the same objects."""

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
        """Count on all hosts of the host's cluster, or on the host alone if it is in no cluster."""
        if host.cluster is None:
            return self.on(host, profile)
        return sum(
            self.on(cluster_host, profile)
            for cluster_host in self.inventory.hosts.values()
            if cluster_host.cluster == host.cluster
        )

    def on(self, host: Host, profile: str) -> int:
        """Count on this host."""
        if not host.gpus or (host.profiles is not None and host.offers(profile) is None):
            return 0
        answers = self.inventory.worked_out.setdefault((FreeSlots, profile, self.claims), {})
        assert isinstance(answers, dict), "only this method uses this key"
        vms, states = self.inventory.vms_on(host), gpu_states(host, self.inventory, self.catalog)
        cluster = self.inventory.clusters.get(host.cluster or "")
        known_count = answers.get(host.ref)
        if isinstance(known_count, _KnownCount) and known_count.is_of(host, vms, states, cluster):
            return known_count.free
        known_count = answers[host.ref] = _KnownCount(host, vms, states, cluster, self._count(host, profile))
        return known_count.free

    def _count(self, host: Host, profile: str) -> int:
        world = host_with_claims(host, self.inventory, self.catalog) if self.claims else self.inventory
        host_now, rooms = world.hosts[host.ref], Rooms(self.catalog)
        free = [rooms.on(state, (profile,)) for state in gpu_states(host_now, world, self.catalog)]
        sure_slots = total([slots[profile] for slots in free if profile in slots])
        return limit_slots([*bars(host_now, world)], sure_slots).at_least


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """What must stay free, checked for one place of a VM after another."""

    needs: Wanted
    inventory: Inventory
    catalog: Catalog
    _free: dict[tuple[str, str], int] = field(default_factory=dict)
    """Counts by profile and cluster, kept because many places are of one cluster."""

    def refusal(self, host: Host, seats: Mapping[int, PciAddress]) -> Rejection | None:
        """Return why the VM may not have these GPUs, or None.

        A place is refused if fewer vGPUs would stay free than are to be kept, and fewer than now. If that is so for
        several profiles, the first one is reported.
        """
        afterwards: FreeSlots | None = None
        for kept_profile in self.needs.keep_free.profiles:
            free = self._free_in_cluster(host, kept_profile.profile)
            if free - self.free_on(host, kept_profile.profile) >= kept_profile.count:
                continue  # the other hosts have enough, even if the VM takes all of this host
            afterwards = afterwards or replace(self._now, inventory=self._with_vm(host, seats))
            free_afterwards = free + sum(
                afterwards.on(affected_host, kept_profile.profile) - self.free_on(affected_host, kept_profile.profile)
                for affected_host in self._affected_hosts(host)
            )
            if free_afterwards < min(free, kept_profile.count):
                return _too_few_free(kept_profile, free_afterwards, host, self.inventory)
        return self._takes_reserved(host, seats)

    def keeps(self, host: Host) -> bool:
        """Whether anything is to stay free in the host's cluster."""
        return bool(self.needs.keep_free.profiles) or is_reserved_in(host, self.inventory)

    def _takes_reserved(self, host: Host, seats: Mapping[int, PciAddress]) -> Rejection | None:
        if not is_reserved_in(host, self.inventory):
            return None
        after = self._with_vm(host, seats)
        remainders = reserved_left([host], self.inventory, after, self.catalog)
        return next((reserved_refusal(remainder, host) for remainder in remainders if remainder.too_few), None)

    def spare(self, host: Host, kept_profile: KeptProfile) -> int:
        """Return how many vGPUs of the profile the VM may take away in the host's cluster."""
        return max(0, self._free_in_cluster(host, kept_profile.profile) - kept_profile.count)

    def free_on(self, host: Host, profile: str) -> int:
        """Return how many vGPUs of the profile can start on the host now."""
        return self._now.on(host, profile)

    @property
    def _now(self) -> FreeSlots:
        return FreeSlots(self.inventory, self.catalog, self.needs.keep_free.claims)

    def _free_in_cluster(self, host: Host, profile: str) -> int:
        key = (profile, host.cluster or host.ref)
        if key not in self._free:
            self._free[key] = self._now.in_cluster_of(host, profile)
        return self._free[key]

    def _affected_hosts(self, host: Host) -> Iterator[Host]:
        """Yield the host that the VM goes to and, if it is in the same cluster, the host that it leaves."""
        yield host
        own_host = self.inventory.host_of(self.needs.vm)
        if (
            own_host is not None
            and own_host.ref != host.ref
            and own_host.cluster is not None
            and own_host.cluster == host.cluster
        ):
            yield own_host

    def _with_vm(self, host: Host, seats: Mapping[int, PciAddress]) -> Inventory:
        """Return the snapshot once the VM runs there, with its vGPUs and the GPUs that it gets as a whole."""
        vm = self.needs.vm
        vgpus = [demand for demand in self.needs.demands if isinstance(demand, WantsVgpu) and demand.ordinal in seats]
        whole = [
            seats[demand.ordinal]
            for demand in self.needs.demands
            if not isinstance(demand, WantsVgpu) and demand.ordinal in seats
        ]
        running_vm = replace(
            vm,
            host=host.ref,
            power=PowerState.ON,
            memory_reservation_mib=vm.memory_mib,
            devices=tuple(VgpuDevice(FIRST_DEVICE_KEY + number, demand.profile) for number, demand in enumerate(vgpus)),
            extra_config={pin_key(number): str(seats[demand.ordinal]) for number, demand in enumerate(vgpus)},
        )
        world = take(running_vm, release(vm, self.inventory), self.catalog)
        pins = {pin_key(number): str(demand.pin) for number, demand in enumerate(vgpus) if demand.pin is not None}
        world = world.with_vm(replace(world.vms[vm.ref], extra_config=pins))  # the host chooses the other GPUs itself
        holding = world.hosts[host.ref]
        bindings = (*holding.bindings, *(DeviceBinding(address, vm.ref) for address in whole))
        return world.with_hosts([replace(holding, bindings=bindings)]) if whole else world


def _too_few_free(kept_profile: KeptProfile, free_afterwards: int, host: Host, inventory: Inventory) -> Rejection:
    cluster = cluster_name(host, inventory)
    where = f"in cluster {cluster}" if cluster else "on it"
    rule = f"vGPUs of {kept_profile.profile} left free {where} afterwards (--keep-free)"
    scope = {"cluster": cluster} if cluster else {"host": hosts_called(host.name)}
    capacity_command = command("capacity", profile=kept_profile.profile, **scope)
    hint = f"{capacity_command} shows where they are; it can start with a lower --keep-free"
    return Rejection(host.name, rule, kept_profile.count, free_afterwards, hint=hint)
