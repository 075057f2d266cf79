"""Keeps devices free: vGPUs of a profile that the request names, and what vCenter reserves for other VMs.

Requested (`--keep-free`): once a VM has its place, so many more vGPUs of the profile must be able to start in its
cluster. A VM that takes none of these vGPUs away is admitted even if fewer are free already. The count is what
`gpuops capacity` shows as sure (`advise/occupancy.py`). A VM that starts takes from the GPUs it is expected on, and as
much as a VM on several GPUs may have on any of them. A host outside any cluster counts as a cluster of its own.

Reserved (vSphere 9.0): vCenter counts each profile by cluster, or by host for hosts outside any cluster. `remaining`
devices can still be given, and `unusedReservation` of them only to VMs of the reservation (vSphere API 9.0,
DirectPathProfileManagerCapacityInfo). These counts hold for the snapshot as it was read. A plan changes a few GPUs, and
the new count follows from them: a GPU takes away at most the room that it may have had before, less the room that it
surely has afterwards. For whole devices (Dynamic DirectPath I/O) the holders are known, so the new count is exact.

Example: vCenter reports 2 remaining and 1 reserved. It does not show where the vGPUs of a mixed-size GPU start, so 0 or
1 of the profile fit there. After a start on this GPU possibly 0 fit: at least 1 remains, which is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from gpuops.advise.capacity import Slots, total_slots
from gpuops.advise.occupancy import GpuState, Rooms, Tenant, gpu_states
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Cluster, DeviceBinding, Host
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory, ProfileCapacity
from gpuops.model.vcenter.vm import FIRST_DEVICE_KEY, PowerState, VgpuDevice, Vm, pin_key, pins_of
from gpuops.plan.core.command_line import Option, command, hosts_called
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import cluster_name, gpu_hosts
from gpuops.plan.placement.gpu_filters import holders
from gpuops.plan.placement.host_filters import bars, limit_slots
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import KeepFree, KeptProfile, Wanted, WantsVgpu

_NO_SLOTS: Final = Slots(0, 0)
_MAX_VGPUS_PER_GPU: Final = 128
"""No GPU has more vGPUs than this; it stands for an unknown number."""


@dataclass(frozen=True, slots=True)
class ReservedLeft:
    """How many vGPUs of a profile, or whole devices, remain before and after a plan, where some are reserved."""

    profile: str
    """The vGPU profile, or the DirectPath profile of the devices."""
    where: str
    """Name of the cluster, or of a host outside any cluster."""
    reserved: int
    before: int
    """How many more can start at least, including those of the reservation."""
    after: int

    @property
    def too_few(self) -> bool:
        """Whether the plan takes reserved devices. It does not if it leaves as many as there were, even if too few."""
        return self.after < min(self.before, self.reserved)

    def __str__(self) -> str:
        left = f"only {max(0, self.after)} would surely be left"
        return f"{self.where}: {self.reserved} of {self.profile} are reserved for other VMs, and {left}"


def reserved_in(host: Host, inventory: Inventory) -> tuple[ProfileCapacity, ...]:
    """Return the vGPU profiles of which some are reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    capacities = inventory.reservations.in_place(_cluster_or_host_ref(host))
    return tuple(capacity for capacity in capacities if capacity.unused_reservation)


def devices_reserved_in(host: Host, inventory: Inventory) -> tuple[DeviceCapacity, ...]:
    """Return the whole devices that are reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    return tuple(
        capacity
        for capacity in inventory.reservations.devices_in(_cluster_or_host_ref(host))
        if capacity.unused_reservation
    )


def is_reserved_in(host: Host, inventory: Inventory) -> bool:
    """Return whether anything is reserved in the host's cluster and not used yet."""
    return bool(reserved_in(host, inventory) or devices_reserved_in(host, inventory))


def reserved_left(
    hosts: Iterable[Host], before: Inventory, after: Inventory, catalog: Catalog
) -> Iterator[ReservedLeft]:
    """Yield what remains in the clusters of these hosts, for a plan that leads from one snapshot to the other."""
    one_host_per_place = {_cluster_or_host_ref(host): host for host in hosts}
    for host in one_host_per_place.values():
        where = place_name(host, before)
        for vgpus in reserved_in(host, before):
            free_before, free_after = (remaining(vgpus, snapshot, catalog).at_least for snapshot in (before, after))
            yield ReservedLeft(vgpus.profile, where, vgpus.unused_reservation, free_before, free_after)
        for devices in devices_reserved_in(host, before):
            free_before, free_after = (devices_remaining(devices, snapshot) for snapshot in (before, after))
            yield ReservedLeft(devices.name, where, devices.unused_reservation, free_before, free_after)


def remaining(capacity: ProfileCapacity, snapshot: Inventory, catalog: Catalog) -> Slots:
    """Return how many more of the profile could start in that cluster, in a snapshot derived from the one as read.

    Example: 5 remain as read. In the plan one GPU changed: it had room for 1 or 2 before, and has room for 0 or 1 now.
    It may have lost 2 (from 2 to 0) or nothing (from 1 to 1): 3 to 5 remain.
    """
    as_read, rooms = snapshot.as_read, Rooms(catalog)
    least = most = capacity.remaining
    for ref, host in snapshot.hosts.items():
        host_as_read = as_read.hosts.get(ref)
        if host_as_read is None or _cluster_or_host_ref(host) != capacity.place:
            continue
        # unchanged hosts and VMs are the same objects in both snapshots
        if host is host_as_read and snapshot.vms_on(host) is as_read.vms_on(host_as_read):
            continue
        states = {state.gpu.address: state for state in gpu_states(host_as_read, as_read, catalog)}
        slots_lost = 0
        for now in gpu_states(host, snapshot, catalog):
            before = states.get(now.gpu.address)
            if before is not None and before != now:
                slots_before, slots_now = (_room(capacity.profile, state, rooms) for state in (before, now))
                slots_lost += _most(slots_before) - slots_now.at_least
                most += _most(slots_now) - slots_before.at_least
        # The host may choose other GPUs than the plan expects for the VMs that start in it.
        refs_running_as_read = {vm.ref for vm in as_read.vms_on(host_as_read) if vm.may_run}
        started = [vm for vm in snapshot.vms_on(host) if vm.may_run and vm.ref not in refs_running_as_read]
        least -= max(slots_lost, _lost_elsewhere(capacity.profile, started, tuple(states.values()), rooms))
    return Slots(max(0, least), max(0, most))


def _lost_elsewhere(profile: str, started: Iterable[Vm], states: Sequence[GpuState], rooms: Rooms) -> int:
    """Return the most slots of a profile that these starts may take, on any GPU that the host may choose; 0 if the
    choices of the host are known.

    If one choice is unknown, every start counts on the GPU where it takes most, and pinned vGPUs on their GPU.
    """
    new_vgpus = [
        (device.profile, pins_of(vm).get(ordinal))
        for vm in started
        for ordinal, device in with_passthru_numbers(vm.devices or ())
        if isinstance(device, VgpuDevice)
    ]
    if _is_choice_known(new_vgpus, states, rooms):
        return 0
    lost = 0
    for new_profile, pin in new_vgpus:
        slots_taken = [0]
        for state in states:
            if _may_go_to(new_profile, pin, state, rooms):
                after = state.with_tenants(Tenant("", "", new_profile))
                slots_taken.append(_most(_room(profile, state, rooms)) - _room(profile, after, rooms).at_least)
        lost += max(slots_taken)
    return lost


def _is_choice_known(
    new_vgpus: Sequence[tuple[str, PciAddress | None]], states: Sequence[GpuState], rooms: Rooms
) -> bool:
    """Return whether the host surely puts vGPUs of these profiles, some of them pinned, where the plan expects them.

    If it is unknown where the vGPUs on a GPU start, it is unsure whether one more fits there, and then no vGPU is sure
    to be where the plan expects it.
    """
    if all(pin is not None for _, pin in new_vgpus):
        return True
    return all(
        _room(profile, state, rooms).at_least
        for profile, pin in new_vgpus
        for state in states
        if _may_go_to(profile, pin, state, rooms)
    )


def _may_go_to(profile: str, pin: PciAddress | None, state: GpuState, rooms: Rooms) -> bool:
    return pin in (None, state.gpu.address) and _room(profile, state, rooms).possible


def devices_remaining(capacity: DeviceCapacity, snapshot: Inventory) -> int:
    """Return how many more of the devices could be given in that cluster, in a snapshot derived from that as read."""
    as_read, remaining_devices = snapshot.as_read, capacity.remaining
    for ref, host in snapshot.hosts.items():
        host_as_read = as_read.hosts.get(ref)
        if host_as_read is None or _cluster_or_host_ref(host) != capacity.place:
            continue
        if host is not host_as_read or snapshot.vms_on(host) is not as_read.vms_on(host_as_read):
            remaining_devices += _free(capacity, host, snapshot) - _free(capacity, host_as_read, as_read)
    return remaining_devices


def _free(capacity: DeviceCapacity, host: Host, inventory: Inventory) -> int:
    """Return how many of these devices on the host are not held by a VM."""
    held_addresses = holders(host, inventory)
    return sum(
        device.address not in held_addresses and capacity.is_of(device)
        for device in host.devices
        if device.passthrough is not None and device.passthrough.active
    )


def _room(profile: str, state: GpuState, rooms: Rooms) -> Slots:
    return rooms.on(state, (profile,)).get(profile, _NO_SLOTS)


def _most(slots: Slots) -> int:
    return _MAX_VGPUS_PER_GPU if slots.at_most is None else slots.at_most


def reserved_unknown(host: Host, inventory: Inventory) -> str | None:
    """Return why the reservations in the host's cluster are unknown; None if they are known."""
    reservations = inventory.reservations
    reason = reservations.why_unknown(_cluster_or_host_ref(host)) if reservations is not None else ""
    return f"{place_name(host, inventory)}: what is reserved for others is not known: {reason}" if reason else None


def reserved_refusal(remainder: ReservedLeft, host: Host) -> Rejection:
    """Return the rejection of a VM that would take reserved devices on the host."""
    reserved = f"{remainder.reserved} of {remainder.profile} are reserved for other VMs in {remainder.where}"
    rule = f"{reserved}, and too few would be left"
    hint = "free other slots there, or reduce the reservation (gpuops help place)"
    return Rejection(host.name, rule, remainder.reserved, remainder.after, hint=hint)


def place_name(host: Host, inventory: Inventory) -> str:
    """Return the name of the host's cluster, or the host's own name if it is in no cluster."""
    return cluster_name(host, inventory) or host.name


def _cluster_or_host_ref(host: Host) -> str:
    return host.cluster or host.ref


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
            raise _named_twice(name)
        by_name[name] = KeptProfile(name.strip(), int(number))
    return tuple(by_name.values())


def _named_twice(profile: str) -> UsageError:
    return UsageError(f"--keep-free names {profile} twice", hint="name each profile once")


def require_unique_profiles(kept_profiles: Iterable[KeptProfile]) -> tuple[KeptProfile, ...]:
    """Return the kept profiles, if each profile occurs once. Raises UsageError."""
    by_profile: dict[str, KeptProfile] = {}
    for kept_profile in kept_profiles:
        if kept_profile.profile in by_profile:
            raise _named_twice(kept_profile.profile)
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
    one_host_per_place: dict[str, Host] = {}
    for host in gpu_hosts(before):
        one_host_per_place.setdefault(_cluster_or_host_ref(host), host)
    free_before, free_after = (FreeSlots(snapshot, catalog, keep.claims) for snapshot in (before, after))
    for kept_profile in keep.profiles:
        profile = kept_profile.profile
        for host in one_host_per_place.values():
            slots_before = free_before.in_cluster_of(host, profile)
            if slots_before:
                slots_after = free_after.in_cluster_of(host, profile)
                yield KeptCount(profile, kept_profile.count, place_name(host, before), slots_before, slots_after)


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
        """Count the free slots of the profile on this host."""
        if not host.gpus or (host.profiles is not None and host.offers(profile) is None):
            return 0
        # The last count of each host, by its ref. It holds until the host, its VMs, its GPUs or its cluster change.
        known_counts = self.inventory.worked_out.setdefault((FreeSlots, profile, self.claims), {})
        assert isinstance(known_counts, dict), "only this method uses this key"
        vms, states = self.inventory.vms_on(host), gpu_states(host, self.inventory, self.catalog)
        cluster = self.inventory.clusters.get(host.cluster or "")
        known_count = known_counts.get(host.ref)
        if isinstance(known_count, _KnownCount) and known_count.is_of(host, vms, states, cluster):
            return known_count.free
        known_count = known_counts[host.ref] = _KnownCount(host, vms, states, cluster, self._count(host, profile))
        return known_count.free

    def _count(self, host: Host, profile: str) -> int:
        snapshot = self.inventory
        if self.claims:
            snapshot, _ = with_claims(snapshot, self.catalog, hosts=[host.ref])
        host_now, rooms = snapshot.hosts[host.ref], Rooms(self.catalog)
        free = [rooms.on(state, (profile,)) for state in gpu_states(host_now, snapshot, self.catalog)]
        sure_slots = total_slots([slots[profile] for slots in free if profile in slots])
        return limit_slots([*bars(host_now, snapshot)], sure_slots).at_least


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """What must stay free, checked for one place of a VM after another."""

    needs: Wanted
    inventory: Inventory
    catalog: Catalog
    _free: dict[tuple[str, str], int] = field(default_factory=dict)
    """Counts by profile and cluster, kept because many places are of one cluster."""

    def refusal(self, host: Host, seats: Mapping[int, PciAddress]) -> Rejection | None:
        """Return why the VM may not have these GPUs, or None. A place is refused if fewer vGPUs would stay free than
        are to be kept, and fewer than now. If that is so for several profiles, the first one is reported."""
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
                return _refuse_too_few_free(kept_profile, free_afterwards, host, self.inventory)
        if is_reserved_in(host, self.inventory):
            for remainder in reserved_left([host], self.inventory, self._with_vm(host, seats), self.catalog):
                if remainder.too_few:
                    return reserved_refusal(remainder, host)
        return None

    def must_keep_any(self, host: Host) -> bool:
        """Return whether anything must stay free in the host's cluster."""
        return bool(self.needs.keep_free.profiles) or is_reserved_in(host, self.inventory)

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
        if own_host is None or own_host.ref == host.ref:
            return
        if own_host.cluster is not None and own_host.cluster == host.cluster:
            yield own_host

    def _with_vm(self, host: Host, seats: Mapping[int, PciAddress]) -> Inventory:
        """Return the snapshot once the VM runs there, with its vGPUs and the GPUs that it gets as a whole."""
        vm = self.needs.vm
        vgpus = [demand for demand in self.needs.demands if isinstance(demand, WantsVgpu) and demand.ordinal in seats]
        whole_gpus = [
            seats[demand.ordinal]
            for demand in self.needs.demands
            if not isinstance(demand, WantsVgpu) and demand.ordinal in seats
        ]
        # All vGPUs are pinned first, so that `take` puts them on exactly these GPUs.
        running_vm = replace(
            vm,
            host=host.ref,
            power=PowerState.ON,
            memory_reservation_mib=vm.memory_mib,
            devices=tuple(VgpuDevice(FIRST_DEVICE_KEY + number, demand.profile) for number, demand in enumerate(vgpus)),
            extra_config={pin_key(number): str(seats[demand.ordinal]) for number, demand in enumerate(vgpus)},
        )
        snapshot = take(running_vm, release(vm, self.inventory), self.catalog)
        pins = {pin_key(number): str(demand.pin) for number, demand in enumerate(vgpus) if demand.pin is not None}
        snapshot = snapshot.with_vm(
            replace(snapshot.vms[vm.ref], extra_config=pins)
        )  # the host chooses the other GPUs itself
        if not whole_gpus:
            return snapshot
        host_after = snapshot.hosts[host.ref]
        bindings = (*host_after.bindings, *(DeviceBinding(address, vm.ref) for address in whole_gpus))
        return snapshot.with_hosts([replace(host_after, bindings=bindings)])


def _refuse_too_few_free(
    kept_profile: KeptProfile, free_afterwards: int, host: Host, inventory: Inventory
) -> Rejection:
    cluster = cluster_name(host, inventory)
    where = f"in cluster {cluster}" if cluster else "on it"
    rule = f"vGPUs of {kept_profile.profile} left free {where} afterwards (--keep-free)"
    scope = {"cluster": cluster} if cluster else {"host": hosts_called(host.name)}
    capacity_command = command("capacity", profile=kept_profile.profile, **scope)
    hint = f"{capacity_command} shows the free vGPUs; a lower --keep-free allows the start"
    return Rejection(host.name, rule, kept_profile.count, free_afterwards, hint=hint)
