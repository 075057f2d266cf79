"""One immutable snapshot of a vCenter, from which plans are made, and past tasks and events of that vCenter.

In a name, vCenter writes a slash as %2f, a backslash as %5c, and a percent sign as %25 (vSphere API reference,
ManagedEntity.name). The letters of an escape may be capitals. `vsphere` decodes each name that it reads, and encodes
each name that it sends: all other code has the name as the vSphere Client shows it.

From vCenter 9.0 on, a snapshot has the capacity of vGPU profiles and complete devices, and what is reserved for VMs.
`Contact` has what `gpuops bundle --first-contact` reads in addition, to judge the table of assumptions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, NamedTuple

from gpuops.errors import HostNotFound, VmAmbiguous, VmNotFound
from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.stored import NOT_STORED, stored_as
from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.vm import Vm, VmDrs


@stored_as("ProfileCapacity")
@dataclass(frozen=True, slots=True)
class ProfileCapacity:
    """One vGPU profile in one place (vSphere API 9.0, DirectPathProfileManagerCapacityInfo), in vGPUs."""

    profile: str
    place: str
    """Ref of the cluster, or of a host of none."""
    consumed: int
    """By VMs that are powered on."""
    maximum: int
    """With no VM running."""
    remaining: int
    """Not assigned to a VM that is powered on, whether or not it is reserved."""
    unused_reservation: int
    """Reserved and not assigned yet: only VMs for which it was reserved start on it."""


@stored_as("DeviceCapacity")
@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """The devices of one DirectPath profile of Dynamic DirectPath I/O in one place, each given whole."""

    name: str
    """Of the DirectPath profile."""
    allowed: tuple[tuple[int, int], ...]
    """(vendor id, device id) pairs: any of these."""
    label: str | None
    """Their hardware label; None = any."""
    place: str
    """Ref of the cluster, or of a host of none."""
    consumed: int
    maximum: int
    remaining: int
    unused_reservation: int
    """These four as those of `ProfileCapacity`."""

    def is_of(self, device: PhysicalGpu | OtherDevice) -> bool:
        """Return whether the reservation is for devices of this kind, once they are given to DirectPath I/O."""
        label = device.passthrough.label if device.passthrough is not None else None
        return (device.vendor_id, device.device_id) in self.allowed and self.label in (None, label)


@stored_as("UnknownCapacity")
@dataclass(frozen=True, slots=True)
class UnknownCapacity:
    """What vCenter did not tell; an empty profile stands for any."""

    place: str
    reason: str
    profile: str = ""


@stored_as("Reservations")
@dataclass(frozen=True, slots=True)
class Reservations:
    """The capacity of vGPU profiles and devices with a DirectPath profile; only these can be reserved."""

    capacities: tuple[ProfileCapacity, ...] = ()
    devices: tuple[DeviceCapacity, ...] = ()
    unknown: tuple[UnknownCapacity, ...] = ()

    def in_place(self, ref: str) -> tuple[ProfileCapacity, ...]:
        """Return the profiles of a cluster, or of a host outside clusters."""
        return tuple(capacity for capacity in self.capacities if capacity.place == ref)

    def devices_in(self, ref: str) -> tuple[DeviceCapacity, ...]:
        """Return the devices of a cluster, or of a host outside clusters."""
        return tuple(capacity for capacity in self.devices if capacity.place == ref)

    def why_unknown(self, ref: str) -> str:
        """Return why the reservations there are not known; empty = they are known."""
        return next((capacity.reason for capacity in self.unknown if capacity.place in (ref, "")), "")


_INDEXES: Final = frozenset({"offered_profiles", "_vms_by_name", "_vms_by_uuid", "vms_by_host"})
"""Values that a snapshot computes on first use; a changed copy must compute them again."""


@stored_as("Inventory")
@dataclass(frozen=True)
class Inventory:
    """What one vCenter looked like at `taken_at`. Keys of the mappings are managed object ids.

    Not slotted: the indexes below are computed once, on first use.
    """

    vcenter: str
    """The vCenter's instance uuid."""
    api_version: str
    taken_at: datetime
    hosts: Mapping[str, Host] = field(default_factory=dict)
    vms: Mapping[str, Vm] = field(default_factory=dict)
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    datastores: Mapping[str, Datastore] = field(default_factory=dict)
    user: str = ""
    hot_migrate_enabled: bool | None = None
    """vCenter setting vgpu.hotmigrate.enabled."""
    machines_not_found: tuple[str, ...] = ()
    """Names of the connection broker's machines that are not certainly a VM of this vCenter, a line for each reason."""
    reservations: Reservations | None = None
    """What of vGPU profiles is reserved, as this snapshot was read; None = the vCenter, before 9.0, knows of none."""
    origin: Inventory | None = field(default=None, repr=False, compare=False, metadata=NOT_STORED)
    """The snapshot as it was read, if this one is a changed copy; see `as_read`.

    Counts of vCenter, such as the free slots of a profile with reservations, are valid only for the snapshot as read.
    `replace` keeps this field, so every copy that a planner makes counts as changed.
    """

    def __post_init__(self) -> None:
        if self.origin is None:
            # A second object of the same values, not itself: reference cycles stay in memory until they are collected.
            origin = object.__new__(Inventory)
            vars(origin).update(vars(self))
            object.__setattr__(self, "origin", origin)

    @property
    def as_read(self) -> Inventory:
        """Return the snapshot as it was read: vCenter's counts are valid for it."""
        return self if self.origin is None else self.origin

    def completed(self, *, hosts: Iterable[Host] = (), vms: Iterable[Vm] = ()) -> Inventory:
        """Return the same snapshot with these hosts and VMs, about which more facts were read.

        The result still counts as read; after `with_hosts` and `with_vms` a snapshot counts as changed.
        """
        hosts_by_ref, vms_by_ref = {host.ref: host for host in hosts}, {vm.ref: vm for vm in vms}
        if not hosts_by_ref and not vms_by_ref:
            return self
        changed_fields: dict[str, Any] = {"hosts": {**self.hosts, **hosts_by_ref}, "vms": {**self.vms, **vms_by_ref}}
        is_as_read = self.hosts is self.as_read.hosts and self.vms is self.as_read.vms
        return replace(self, origin=None, **changed_fields) if is_as_read else self._derive(**changed_fields)

    def vm(self, ref: str) -> Vm:
        """Return the VM of a managed object id. Raises VmNotFound."""
        try:
            return self.vms[ref]
        except KeyError:
            raise VmNotFound(ref) from None

    def host_of(self, vm: Vm) -> Host | None:
        return self.hosts.get(vm.host) if vm.host else None

    def cluster_of(self, vm: Vm) -> Cluster | None:
        host = self.host_of(vm)
        return self.clusters.get(host.cluster) if host is not None and host.cluster else None

    def drs_of(self, vm: Vm) -> VmDrs | None:
        """Return what DRS does with the VM; VmDrs.CLUSTER on a host outside clusters; None = it cannot be read."""
        host = self.host_of(vm)
        if host is None:
            return None
        cluster = self.cluster_of(vm)
        if cluster is None:
            return VmDrs.CLUSTER if host.cluster is None else None
        return cluster.drs_of(vm.ref)

    def find_vm(self, text: str) -> Vm:
        """Return the VM of a name, an inventory path, `moid:vm-42` or `uuid:...`. Raises VmNotFound, VmAmbiguous."""
        scheme, _, identity = text.partition(":")
        if scheme == "moid" and identity in self.vms:
            return self.vms[identity]
        if scheme == "uuid":
            matches = list(self.vms_with_uuid(identity.lower()))
        elif "/" in text:
            matches = [vm for vm in self.vms.values() if vm.is_called(text)]
        else:
            matches = list(self._vms_by_name.get(text, ()))
        if not matches:
            raise VmNotFound(text, near=self._near_vms(text))
        if len(matches) > 1:
            # two VMs can have the same path if a name contains a slash: the VM a/b, and the VM b in the folder a
            count_by_path = Counter(vm.path for vm in matches if vm.path)
            names = (vm.path if count_by_path[vm.path] == 1 else f"moid:{vm.ref}" for vm in matches)
            raise VmAmbiguous(text, sorted(names))
        return matches[0]

    def vms_with_uuid(self, uuid: str) -> tuple[Vm, ...]:
        """Return the VMs of this instance uuid (normally at most one), whatever their managed object ids are now."""
        return self._vms_by_uuid.get(uuid, ())

    def find_host(self, text: str) -> Host:
        """Return the host of that name (its first label is enough when unique) or id. Raises HostNotFound."""
        if text in self.hosts:
            return self.hosts[text]
        exact = [host for host in self.hosts.values() if host.name == text]
        matches = exact or [host for host in self.hosts.values() if host.name.split(".")[0] == text]
        if len(matches) != 1:
            names = [host.name for host in matches or self.hosts.values()]
            raise HostNotFound(text, near=names if matches else _near_hosts(text, names))
        return matches[0]

    def vms_on(self, host: Host) -> tuple[Vm, ...]:
        return self.vms_by_host.get(host.ref, ())

    def with_vm(self, vm: Vm) -> Inventory:
        """Return the same snapshot with one VM replaced."""
        before = self.vms.get(vm.ref)
        if before is vm:
            return self
        by_host = dict(self.vms_by_host)
        if before is not None and before.host == vm.host:
            vms_on_host = by_host[vm.host or ""]
            by_host[vm.host or ""] = tuple(vm if host_vm.ref == vm.ref else host_vm for host_vm in vms_on_host)
        else:
            if before is not None:
                remaining_vms = tuple(host_vm for host_vm in by_host[before.host or ""] if host_vm.ref != vm.ref)
                by_host[before.host or ""] = remaining_vms
            by_host[vm.host or ""] = (*by_host.get(vm.host or "", ()), vm)
        return self._derive(vms={**self.vms, vm.ref: vm}, vms_by_host=by_host)

    def with_vms(self, vms: Iterable[Vm]) -> Inventory:
        """Return the same snapshot with these VMs replaced, each on the host that it was on."""
        vms_by_ref = {vm.ref: vm for vm in vms}
        return self._derive(vms={**self.vms, **vms_by_ref}) if vms_by_ref else self

    def with_hosts(self, hosts: Iterable[Host]) -> Inventory:
        """Return the same snapshot with these hosts replaced."""
        hosts_by_ref = {host.ref: host for host in hosts}
        if all(self.hosts.get(ref) is host for ref, host in hosts_by_ref.items()):
            return self
        return self._derive(hosts={**self.hosts, **hosts_by_ref}, vms_by_host=self.vms_by_host)

    def with_cluster(self, cluster: Cluster) -> Inventory:
        """Return the same snapshot with this cluster replaced."""
        return self._derive(clusters={**self.clusters, cluster.ref: cluster}, vms_by_host=self.vms_by_host)

    def with_machines_not_found(self, machines: tuple[str, ...]) -> Inventory:
        """Return the same snapshot with these lines about machines of the connection broker."""
        if machines == self.machines_not_found:
            return self
        return self._derive(machines_not_found=machines, vms_by_host=self.vms_by_host)

    def _derive(self, **changed: object) -> Inventory:
        """Return a changed copy of this snapshot that shares its caches: a plan for many VMs makes thousands of them.

        The VMs of an unchanged host stay one object, so that caches need not compare them. `replace` would write every
        field again, and take longer than all other parts of a plan's step.
        """
        derived = object.__new__(Inventory)
        fields = {name: field_value for name, field_value in vars(self).items() if name not in _INDEXES}
        vars(derived).update(fields, worked_out=self.worked_out, **changed)
        return derived

    @cached_property
    def offered_profiles(self) -> tuple[str, ...]:
        """Return the names of all vGPU profiles that hosts offer, sorted."""
        return tuple(sorted({offer.name for host in self.hosts.values() for offer in host.profiles or ()}))

    def _near_vms(self, text: str) -> list[str]:
        """Return the paths of VMs of that name if the text is a path, else similar names."""
        name = text.rpartition("/")[2]
        paths_of_name = sorted(vm.path for vm in self._vms_by_name.get(name, ()) if "/" in text and vm.path)
        # `train/bert` may be the name of a VM, or the end of a path
        near = [close for spelling in (text, name) for close in get_close_matches(spelling, self._vms_by_name, n=3)]
        return (paths_of_name or list(dict.fromkeys(near)))[:3]

    @cached_property
    def _vms_by_name(self) -> Mapping[str, tuple[Vm, ...]]:
        index: dict[str, list[Vm]] = {}
        for vm in self.vms.values():
            index.setdefault(vm.name, []).append(vm)
        return {name: tuple(vms) for name, vms in index.items()}

    @cached_property
    def _vms_by_uuid(self) -> Mapping[str, tuple[Vm, ...]]:
        index: dict[str, list[Vm]] = {}
        for vm in self.vms.values():
            if vm.instance_uuid is not None:
                index.setdefault(vm.instance_uuid, []).append(vm)
        return {uuid: tuple(vms) for uuid, vms in index.items()}

    @cached_property
    def vms_by_host(self) -> Mapping[str, tuple[Vm, ...]]:
        """Return the VMs by the ref of their host; those of no known host under ''."""
        if self.origin is not None and self.vms is self.origin.vms:
            return self.origin.vms_by_host  # the same objects, so that equal hosts need not be compared
        index: dict[str, list[Vm]] = {}
        for vm in self.vms.values():
            index.setdefault(vm.host or "", []).append(vm)
        return {ref: tuple(vms) for ref, vms in index.items()}

    @cached_property
    def worked_out(self) -> dict[object, object]:
        """Return the cache for facts derived from this snapshot and its copies; each user has its own key."""
        return {}


def _near_hosts(text: str, names: Iterable[str]) -> list[str]:
    """Return the hosts whose name, or its first label, is similar."""
    name_by_spelling = {spelled: name for name in names for spelled in (name.split(".")[0], name)}
    near = get_close_matches(text, name_by_spelling, n=6)
    return list(dict.fromkeys(name_by_spelling[spelling] for spelling in near))[:3]


_CHARACTERS: Final = {"%2f": "/", "%5c": "\\", "%25": "%"}
_ESCAPE: Final = re.compile("|".join(_CHARACTERS), re.IGNORECASE)


def decode_name(written: str) -> str:
    """Return the real name, `train/bert` for `train%2fbert`. Text without an escape is its own name."""
    if "%" not in written:  # nearly every name: a fleet has ten thousand
        return written
    return _ESCAPE.sub(lambda escape: _CHARACTERS[escape.group().lower()], written)


def encode_name(name: str) -> str:
    """Return the name as vCenter writes it, `train%2fbert` for `train/bert`."""
    # the percent sign first: the other two escapes begin with one
    return name.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")


@dataclass(frozen=True, slots=True)
class PastTask:
    """One task of the history of vCenter that has ended."""

    ref: str
    """Managed object id of its VM."""
    kind: str
    """TaskInfo.descriptionId: `VirtualMachine.suspend`."""
    queued: datetime
    ran_s: float | None
    """Without its time in the queue; None = vCenter does not say."""
    fault: str = ""
    """Type of the fault that it ended in; empty = it succeeded."""
    names_vgpu: bool = False
    """Whether the message of the fault speaks of a vGPU or its plugin."""
    created_vm: str | None = None
    """Managed object id of the clone that it created."""
    by_user: bool = True
    """Whether a login asked for it; vCenter itself or a schedule otherwise."""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """One event about the power state or the host of a VM."""

    ref: str
    kind: str
    """Its type: `VmSuspendedEvent`."""
    at: datetime
    host: str | None
    """Managed object id of the host where the VM was then, after a move of the one it moved to."""
    source: str | None = None
    """Of the host that it came from by a move."""


class SettingChange(NamedTuple):
    """One event about a setting that a user changed."""

    ref: str
    """Managed object id of the VM or cluster."""
    setting: str
    """`devices` (those with GPUs), `marks` or `cluster`."""
    user: str
    mark: str = ""
    """The custom attribute, of a change of `marks`."""


@dataclass(frozen=True, slots=True)
class Contact:
    """One read-only look at a vCenter, its hosts and its broker."""

    inventory: Inventory
    """With settings of the hosts, and with what their nvidia-smi reports where they could be asked."""
    tasks: tuple[PastTask, ...] = ()
    """Oldest first."""
    events: tuple[PastEvent, ...] = ()
    """In the order in which vCenter wrote them."""
    changes: tuple[PastEvent, ...] | None = None
    """Changes of VMs' advanced options and custom attributes by any user; None = they could not be read."""
    counter_instances: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """By host (ref), the instances of its GPU counters."""
    counter_names: frozenset[str] = frozenset()
    """The counters that vCenter has: `gpu.utilization.average`; empty = none could be read."""
    reserved_mib: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By cluster (ref), the memory that its VMs reserve, as its root resource pool counts it."""
    machines: tuple[DesktopMachine, ...] = ()
    """Of the connection broker."""
    unread: tuple[str, ...] = ()
    """What could not be read, with the reason."""
