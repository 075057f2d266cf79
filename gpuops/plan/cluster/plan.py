"""The plan of a cluster: rows about template and hosts, a place for each VM that is not there, and every step.

All or nothing: what has room for all but one has room for none. Hosts do not depend on each other, so how many VMs each
holds is asked host by host, and the arrangement deals the ranks out by these numbers:

* packed: hosts that hold the most come first, so as few as possible are used; the last is the smallest that holds what
  is left. Example: hosts that hold 2, 4, 3 and five VMs: four on the second, one on the first.
* spread: each VM goes to the host that has the fewest of the cluster, those with room for most first.

Ranks lie in a row on each host: neighbours of a ring talk within a host as far as they can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.rdma import Networks
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.cluster import MARKER_KEY, Arrangement, ClusterMarker, ClusterWish, LatencyLevel, RdmaKind
from gpuops.plan.cluster.edited import HUGE_PAGES, edited
from gpuops.plan.cluster.members import MarkedVm, marked_vms
from gpuops.plan.cluster.one_vm import MemberSteps, gpu_types, member_steps
from gpuops.plan.cluster.prerequisites import (
    ClusterNetwork,
    Prerequisite,
    free_functions,
    host_rows,
    network_of,
    template_rows,
    uplink_node,
)
from gpuops.plan.cluster.refusals import HostRoom, no_room, refused_once, row_refusal
from gpuops.plan.core.plan import Plan, Rejection, Wave
from gpuops.plan.core.privileges import too_old
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs, Step
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.vm.clone import FORESEEN, Clone, NewCard, NewClone

_CARDS: Final = {RdmaKind.PVRDMA: "vmxnet3vrdma", RdmaKind.SRIOV: "sriov"}
"""Kinds of the network cards that are part of the clone."""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """One VM of the cluster."""

    rank: int
    name: str
    host: Host
    new: NewClone | None
    """None = it is there."""
    steps: tuple[Step, ...]
    says: str
    """Where its GPU and its network card are."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What is done, or every reason why not."""

    wish: ClusterWish
    id: str
    """Of the cluster; what is there has it, what is made gets it."""
    rows: tuple[Prerequisite, ...] = ()
    members: tuple[PlannedMember, ...] = ()
    """By rank."""
    rejections: tuple[Rejection, ...] = ()
    """Of each host and each VM."""
    warnings: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each thing that is wrong, with its next move."""
        return tuple(each.line for each in refused_once(self.rejections))

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def new(self) -> tuple[NewClone, ...]:
        return tuple(each.new for each in self.members if each.new is not None)

    @property
    def deeds(self) -> tuple[object, ...]:
        """What is done, without what it was decided by: two plans of the same deeds need be asked about once."""
        return tuple((each.rank, each.host.ref, each.new, each.steps) for each in self.members)

    @property
    def changes(self) -> bool:
        return any(each.new is not None or each.steps for each in self.members)

    @property
    def steps(self) -> Plan:
        """The steps of all VMs: devices, then overrides of DRS, then starts."""
        every = [step for each in self.members for step in each.steps]
        kinds = (("give GPUs", ReconfigureVm), ("keep off DRS", SetVmDrs), ("start", PowerOnVm))
        found = [(title, tuple(step for step in every if isinstance(step, kind))) for title, kind in kinds]
        return Plan(tuple(Wave(f"{title}: {len(steps)}", steps) for title, steps in found if steps))


@dataclass(frozen=True, slots=True)
class ClusterQuestion:
    """A cluster that is wanted, and all that was read for it."""

    wish: ClusterWish
    id: str
    """Drawn for it, where no VM of it is there yet."""
    networks: Networks
    made_for: str
    """Guest id of the template: `ubuntu64Guest`; empty = not known."""
    folder: str | None
    """Managed object id of the folder that the file names."""

    def planned(self, inventory: Inventory, catalog: Catalog, now: datetime) -> ClusterPlan:
        """The plan on this snapshot, which knows the template's devices. Raises UsageError for names that mean
        nothing."""
        return _Planning(self, inventory, catalog, now).plan()


@dataclass(slots=True)
class _Planning:
    """One question on one snapshot; `world` is the snapshot as the VMs that were planned leave it."""

    asked: ClusterQuestion
    inventory: Inventory
    catalog: Catalog
    now: datetime
    network: ClusterNetwork | None = None
    rows: list[Prerequisite] = field(default_factory=list)

    @property
    def wish(self) -> ClusterWish:
        return self.asked.wish

    def plan(self) -> ClusterPlan:
        there = marked_vms(self.inventory, self.wish.name)
        against = (*too_old(self.inventory), *_not_ours(self.wish, self.asked.id, there))
        if against:
            return self._refused(against)
        template = self.inventory.find_vm(self.wish.template)
        self.rows += template_rows(self.wish, template, self.asked.made_for)
        network = network_of(self.wish, self.asked.networks)
        if isinstance(network, Prerequisite):
            self.rows.append(network)
        else:
            self.network = network
        failed = tuple(row_refusal(row) for row in self.rows if row.passed is False or row is network)
        if self.wish.profile is None and not gpu_types(self.wish, self.inventory):
            hint = "gpuops inventory --hosts shows the GPUs of each; name one in the file: gpus.model"
            failed += (Rejection(self.wish.name, f"no host has a GPU of model {self.wish.model}", hint=hint),)
        return self._refused(failed) if failed else self._with_members(template, there)

    def _refused(self, reasons: Sequence[Rejection]) -> ClusterPlan:
        return ClusterPlan(self.wish, self.asked.id, tuple(self.rows), rejections=tuple(dict.fromkeys(reasons)))

    def _with_members(self, template: Vm, there: tuple[MarkedVm, ...]) -> ClusterPlan:
        world, members, warnings = self.inventory, list[PlannedMember](), list[str]()
        # Those that are there keep their hosts, and their GPUs are taken first: of those that have theirs, and may be
        # bound to a node, before those of clones that were made just now.
        for each in sorted(there, key=lambda each: (-len(each.vm.devices or ()), each.marker.rank)):
            found = self._steps(each.vm, world)
            host = self.inventory.host_of(each.vm)
            if not isinstance(found, MemberSteps) or host is None:
                return self._refused(found if not isinstance(found, MemberSteps) else ())
            members.append(PlannedMember(each.marker.rank, each.vm.name, host, None, found.steps, found.says))
            world, warnings = found.after, [*warnings, *found.warnings, *edited(self.wish, each.vm, host)]
        missing = sorted(set(range(self.wish.nodes)) - {each.marker.rank for each in there})
        if missing:
            hosts = self._hosts(template)
            room = {host.ref: self._room(host, missing, world) for host in hosts}
            counts = arranged(
                self.wish.placement,
                {ref: len(found) for ref, (found, _) in room.items()},
                {ref: sum(each.vm.host == ref for each in there) for ref in room},
                len(missing),
            )
            if counts is None:
                return self._refused(tuple(no_room(self.wish, hosts, room, len(missing), self.rows)))
            for rank, host in zip(missing, _in_a_row(hosts, counts), strict=True):
                made = self._new(rank, host)
                found = self._placed(made, world)
                if not isinstance(made, NewClone) or not isinstance(found, MemberSteps):
                    return self._refused(found if not isinstance(found, MemberSteps) else ())
                members.append(PlannedMember(rank, made.name, host, made, found.steps, found.says))
                world, warnings = found.after, [*warnings, *found.warnings]
        members.sort(key=lambda each: each.rank)
        every = _said_once(warnings, [name for each in members for name in (each.name, each.host.name)])
        return ClusterPlan(self.wish, self.asked.id, tuple(self.rows), tuple(members), warnings=every)

    def _hosts(self, template: Vm) -> tuple[Host, ...]:
        """The hosts that may take a VM; of the others a row says why not."""
        found = []
        for host in sorted(self.inventory.hosts.values(), key=lambda each: each.name):
            if not host.gpus or unreachable(host) is not None:
                continue
            if not set(template.datastores) & set(host.datastores or ()) and self.wish.datastore is None:
                continue
            rows = tuple(host_rows(self.wish, host, self.network, self.asked.networks, self.inventory))
            self.rows += rows
            if all(row.passed is not False for row in rows):
                found.append(host)
        return tuple(found)

    def _room(self, host: Host, ranks: Sequence[int], world: Inventory) -> HostRoom:
        """VMs that the host takes one after another, as many as it can or as there are, and why not one more."""
        found: list[MemberSteps] = []
        limit = len(ranks)
        if self.wish.rdma is RdmaKind.SRIOV and self.network is not None:
            rdma = self.asked.networks.hosts.get(host.ref)
            free = free_functions(host, self.network, rdma, self.inventory) if rdma is not None else None
            limit = min(limit, free or 0)
        for rank in ranks[:limit]:
            one = self._placed(self._new(rank, host), world)
            if not isinstance(one, MemberSteps):
                return tuple(found), one
            found.append(one)
            world = one.after
        lacks = Rejection(host.name, "has no further virtual function free")
        return tuple(found), (lacks,) if limit < len(ranks) else ()

    def _placed(self, made: NewClone | tuple[Rejection, ...], world: Inventory) -> MemberSteps | tuple[Rejection, ...]:
        if not isinstance(made, NewClone):
            return made
        world = made.made_in(world)
        return self._steps(world.vm(f"{FORESEEN}{made.name}"), world)

    def _steps(self, vm: Vm, world: Inventory) -> MemberSteps | tuple[Rejection, ...]:
        host = world.host_of(vm)
        node = uplink_node(host, self.network, self.asked.networks) if self.network and host is not None else None
        kind = _CARDS.get(self.wish.rdma)
        cards = [nic for nic in vm.nics or () if nic.kind == kind]
        if kind and vm.nics is not None and not vm.ref.startswith(FORESEEN) and not cards:
            again = f"gpuops cluster delete --name {self.wish.name}, then create it anew"
            return (Rejection(vm.name, "has no RDMA network card any more", hint=again),)
        if vm.power is PowerState.SUSPENDED:
            return (Rejection(vm.name, "is suspended", hint="resume it: what its guest holds is somebody's"),)
        return member_steps(self.wish, vm, node, world, self.catalog, self.now)

    def _new(self, rank: int, host: Host) -> NewClone | tuple[Rejection, ...]:
        wish = self.wish
        request = Clone(
            wish.vm_name(rank), wish.template, host.ref, wish.folder, wish.datastore, wish.cpus,
            wish.memory_mib,
        )  # fmt: skip
        cloning = request.planned(self.inventory, self.asked.folder)
        if cloning.new is None:
            taken = Rejection(wish.vm_name(rank), "a VM of that name is there, and is none of this cluster")
            return cloning.rejections or (replace(taken, hint="rename it, or name the cluster otherwise"),)
        marker = ClusterMarker(wish.name, rank, wish.nodes, self.asked.id, wish.digest, wish.gpus, wish.rdma)
        settings = {MARKER_KEY: marker.text, **({HUGE_PAGES: "TRUE"} if wish.huge_pages else {})}
        high = wish.latency is LatencyLevel.HIGH
        if high and host.cpu_mhz is None:
            rule = "its CPU cannot be read, all of which is reserved with latency sensitivity high"
            return (Rejection(host.name, rule, hint="read access to the host"),)
        return replace(
            cloning.new,
            notes=marker.notes,
            settings=settings,
            card=self._card(),
            memory_locked=True,
            cpu_reservation_mhz=cloning.new.vcpus * host.cpu_mhz if high and host.cpu_mhz is not None else None,
            latency=wish.latency,
        )

    def _card(self) -> NewCard | None:
        if self.network is None:
            return None
        return NewCard(self.wish.rdma, self.network.switch.uuid, self.network.group.key)


def arranged(
    arrangement: Arrangement, room: Mapping[str, int], there: Mapping[str, int], wanted: int
) -> dict[str, int] | None:
    """How many VMs go to each host; None = they have no room together.

    >>> arranged(Arrangement.PACKED, {"a": 2, "b": 4, "c": 3}, {}, 5)
    {'b': 4, 'a': 1}
    >>> arranged(Arrangement.SPREAD, {"a": 2, "b": 4, "c": 3}, {}, 5)
    {'b': 2, 'c': 2, 'a': 1}
    """
    if sum(room.values()) < wanted:
        return None
    # hosts of the cluster come first: what is missing of it goes beside what is there
    order = sorted(room, key=lambda ref: (-room[ref], ref))
    counts = dict.fromkeys(order, 0)
    if arrangement is Arrangement.SPREAD:
        for _ in range(wanted):
            free = [ref for ref in order if counts[ref] < room[ref]]
            counts[min(free, key=lambda ref: counts[ref] + there.get(ref, 0))] += 1
        return {ref: count for ref, count in counts.items() if count}
    left = wanted
    order.sort(key=lambda ref: -there.get(ref, 0))
    while left:
        open_hosts = [ref for ref in order if not counts[ref] and room[ref]]
        beside = [ref for ref in open_hosts if there.get(ref, 0)]
        whole = [ref for ref in open_hosts if room[ref] >= left]
        chosen = beside[0] if beside else min(whole, key=lambda ref: room[ref]) if whole else open_hosts[0]
        counts[chosen] = min(left, room[chosen])
        left -= counts[chosen]
    return {ref: count for ref, count in counts.items() if count}


def _said_once(warnings: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The warnings; one that is said of several VMs only of the first, with their number."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for line in dict.fromkeys(warnings):
        kind = tuple("" if word in names else "N" if word.isdigit() else word for word in re.split(r"[ :]", line))
        alike.setdefault(kind, []).append(line)
    return tuple(
        lines[0] if len(lines) == 1 else f"{lines[0]} (also {len(lines) - 1} more)" for lines in alike.values()
    )


def _in_a_row(hosts: Sequence[Host], counts: Mapping[str, int]) -> Iterator[Host]:
    """The host of each rank."""
    for host in hosts:
        for _ in range(counts.get(host.ref, 0)):
            yield host


def _not_ours(wish: ClusterWish, id_now: str, there: Sequence[MarkedVm]) -> Iterator[Rejection]:
    """Why the VMs that are there are not those of this file."""
    removes = f"gpuops cluster delete --name {wish.name} removes it"
    for each in there:
        if each.marker.wish != wish.digest:
            yield Rejection(each.vm.name, f"is of a cluster {wish.name} that another file wanted", hint=removes)
        elif each.marker.id != id_now:
            yield Rejection(each.vm.name, f"is of another cluster {wish.name}, made apart", hint=removes)
    ranks = [each.marker.rank for each in there]
    for each in there:
        if ranks.count(each.marker.rank) > 1:
            path = each.vm.path or each.vm.ref
            yield Rejection(path, f"claims rank {each.marker.rank} of it as another VM does", hint="rename the copy")
