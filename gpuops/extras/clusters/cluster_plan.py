"""Plans a cluster: checks of template and hosts, a place for each missing VM, and all steps.

All or nothing: if one VM has no room, none is made. Hosts do not depend on each other, so the number of VMs that fit is
computed host by host, and the ranks are distributed by these numbers:

* packed: hosts with room for most VMs come first, so that few hosts are used; the last host is the smallest that holds
  the remaining VMs. Example: five VMs on hosts with room for 2, 4 and 3: four on the second host, one on the first.
* spread: each VM goes to the host with the fewest VMs of the cluster; among these, to the one with most room.

Each host gets consecutive ranks, so that neighbours of a ring communicate within a host where possible."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from gpuops.extras.clusters.cluster_members import MarkedVm, marked_vms
from gpuops.extras.clusters.one_vm import (
    ClusterNetwork,
    MemberSteps,
    free_functions,
    gpu_types,
    host_rows,
    member_steps,
    network_of,
    template_rows,
    uplink_node,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.other_device import Networks
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, pins_of
from gpuops.model.workloads.cluster import MARKER_KEY, Arrangement, ClusterMarker, ClusterWish, LatencyLevel, RdmaKind
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.privileges import too_old
from gpuops.plan.core.rejection import Rejection, summarize_similar
from gpuops.plan.core.steps import NEW_VM, CloneVm, NewCard, PowerOnVm, ReconfigureVm, SetVmDrs, Step
from gpuops.plan.hosts.pvrdma import Prerequisite
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.placement.project import project
from gpuops.plan.vm.clone import Clone

HUGE_PAGES: Final = "sched.mem.lpage.enable1GPage"
"""The extraConfig key for guest memory in pages of 1 GiB, which requires that all memory is reserved (VMware vSphere
Resource Management, "Backing Guest vRAM with 1GB Pages")."""


def changes_by_admin(wish: ClusterWish, vm: Vm, host: Host) -> Iterator[str]:
    """Yield a line for each setting that differs from the file, which is not changed back.

    Settings that cannot be read are left out. The level of latency sensitivity is not read, only its reservation of
    CPU.
    """
    for difference in _differences(wish, vm, host):
        yield f"{vm.name}: {difference}: it is not changed; to change it, run gpuops cluster delete and create"


def _differences(wish: ClusterWish, vm: Vm, host: Host) -> Iterator[str]:
    """Yield how the settings of an existing VM differ from the file. A setting that cannot be read counts as equal."""
    if wish.cpus is not None and vm.vcpus not in (None, wish.cpus):
        yield f"has {vm.vcpus} vCPUs, and the file says {wish.cpus}"
    if wish.memory_mib is not None and vm.memory_mib not in (None, wish.memory_mib):
        yield f"has {vm.memory_mib} MiB of memory, and the file says {wish.memory_mib}"
    reserved = vm.memory_reservation_mib
    if reserved is not None and vm.memory_mib is not None and reserved < vm.memory_mib:
        yield f"has {reserved} MiB of its {vm.memory_mib} MiB of memory reserved"
    if wish.huge_pages and vm.extra_config is not None and vm.extra_config.get(HUGE_PAGES, "").upper() != "TRUE":
        yield "has no pages of 1 GiB, and the file requires them"
    if wish.latency is LatencyLevel.HIGH and None not in (vm.vcpus, vm.cpu_reservation_mhz, host.cpu_mhz):
        full_mhz = (vm.vcpus or 0) * (host.cpu_mhz or 0)
        if (vm.cpu_reservation_mhz or 0) < full_mhz:
            yield f"has {vm.cpu_reservation_mhz} of {full_mhz} MHz reserved, and the file says latency sensitivity high"


ROOM: Final = "VMs that hosts have room for"
_TAKES: Final = "takes "
_SMALLER_VMS_HINT: Final = "change in the file what each VM gets: gpus, cpus, memory, datastore"

HostRoom = tuple[tuple[MemberSteps, ...], tuple[Rejection, ...]]
"""The VMs that fit on a host, and the reasons why no further one fits."""


def row_refusal(row: Prerequisite) -> Rejection:
    return Rejection(row.subject, f"{row.check}: {row.says}", hint=row.next_move)


def room_rejections(
    wish: ClusterWish,
    hosts: Sequence[Host],
    room: Mapping[str, HostRoom],
    missing_vms: int,
    rows: Sequence[Prerequisite],
) -> Iterator[Rejection]:
    """Yield one refusal with the number of VMs that there is room for, then one for each host, then the failed checks.

    `room`: by host the missing VMs that fit there. `missing_vms`: the number of VMs that do not exist yet.
    """
    failed = [row_refusal(row) for row in rows if row.passed is False]
    if not hosts and not failed:
        where = "" if wish.datastore is not None else " and sees a datastore of the template"
        hint = "gpuops inventory --hosts shows the hosts" + ("; or set another datastore in the file" if where else "")
        yield Rejection(wish.name, f"no host that can be reached has GPUs{where}", hint=hint)
        return
    vms_with_room = sum(len(fitting) for fitting, _ in room.values())
    hints = [reason.hint for _, reasons in room.values() for reason in reasons[:1] if reason.hint]
    most_nodes = wish.nodes - missing_vms + vms_with_room
    hint = f"ask for {most_nodes} nodes or fewer" if vms_with_room else next(iter(hints), _SMALLER_VMS_HINT)
    yield Rejection(wish.name, ROOM, missing_vms, vms_with_room, hint=hint)
    for host in hosts:
        fitting, reasons = room[host.ref]
        for reason in reasons[:1]:
            is_about_gpu = reason.subject.startswith(f"{host.name} ")
            if fitting and is_about_gpu:  # the reason would name a GPU that another planned VM of this cluster takes
                yield Rejection(host.name, f"{_TAKES}{len(fitting)} of the VMs, and has GPUs for no more")
                continue
            reason_text = str(reason).removeprefix(f"{host.name}{' ' if is_about_gpu else ': '}")
            takes = f"{_TAKES}{len(fitting)} of the VMs, not one more" if fitting else f"{_TAKES}none"
            yield Rejection(host.name, f"{takes}: {reason_text}", hint=reason.hint)
    yield from failed


def refused_once(rejections: Sequence[Rejection]) -> tuple[Rejection, ...]:
    """Return one refusal for each problem, the worst first; it names all hosts or VMs with this problem.

    Too little room is one problem, with the reasons of the hosts. But if every host has failed its checks, these checks
    are the problems, and those with the same next move are joined. Only the first failed check of a host counts,
    because others may follow from it: a switch without RDMA also has no VMkernel adapter for it.
    """
    if not rejections or rejections[0].rule != ROOM:
        return summarize_similar(rejections)
    room_refusal, *host_refusals = rejections
    first_refusals: dict[str, Rejection] = {}  # by host
    for refusal in host_refusals:
        first_refusals.setdefault(refusal.subject, refusal)
    reasons = summarize_similar(first_refusals.values())
    if host_refusals and not any(refusal.rule.startswith(_TAKES) for refusal in host_refusals):
        hints = dict.fromkeys(refusal.hint for refusal in reasons)
        groups = ([refusal for refusal in reasons if refusal.hint == hint] for hint in hints)
        return tuple(_join_refusals(first, more_refusals) for first, *more_refusals in groups)
    return (_join_refusals(room_refusal, reasons),)


def _join_refusals(first_refusal: Rejection, more_refusals: Sequence[Rejection]) -> Rejection:
    return replace(
        first_refusal, rule="; ".join((first_refusal.reason, *map(str, more_refusals))), needed=None, available=None
    )


_CARDS: Final = {RdmaKind.PVRDMA: "vmxnet3vrdma", RdmaKind.SRIOV: "sriov"}
"""The kinds of network cards that are part of the clone."""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """One VM of the cluster."""

    rank: int
    name: str
    host: Host
    new: CloneVm | None
    """None if the VM exists."""
    steps: tuple[Step, ...]
    says: str
    """The place of its GPU and its network card, as text."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The steps for a cluster, or all reasons to refuse it."""

    wish: ClusterWish
    id: str
    """The id of the cluster, in the markers of its existing and new VMs."""
    rows: tuple[Prerequisite, ...] = ()
    members: tuple[PlannedMember, ...] = ()
    """Sorted by rank."""
    rejections: tuple[Rejection, ...] = ()
    """The refusals for each host and each VM."""
    warnings: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return a line for each problem, with its next move."""
        return tuple(refusal.line for refusal in refused_once(self.rejections))

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def new(self) -> tuple[CloneVm, ...]:
        return tuple(member.new for member in self.members if member.new is not None)

    @property
    def deeds(self) -> tuple[object, ...]:
        """Return the changes without their reasons. Two plans with the same deeds need consent only once."""
        return tuple((member.rank, member.host.ref, member.new, member.steps) for member in self.members)

    @property
    def changes(self) -> bool:
        return any(member.new is not None or member.steps for member in self.members)

    @property
    def steps(self) -> Plan:
        """Return the steps of all VMs: devices, then overrides of DRS, then starts."""
        all_steps = [step for member in self.members for step in member.steps]
        kinds = (("give GPUs", ReconfigureVm), ("keep off DRS", SetVmDrs), ("start", PowerOnVm))
        waves = [(title, tuple(step for step in all_steps if isinstance(step, kind))) for title, kind in kinds]
        return Plan(tuple(Wave(f"{title}: {len(steps)}", steps) for title, steps in waves if steps))


@dataclass(frozen=True, slots=True)
class ClusterQuestion:
    """The request for a cluster, and the facts that were read for it."""

    wish: ClusterWish
    id: str
    """The id of the cluster, a random one if it has no VM yet."""
    networks: Networks
    made_for: str
    """Guest id of the template, for example `ubuntu64Guest`; empty if unknown."""
    folder: str | None
    """Managed object id of the folder in the file."""

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> ClusterPlan:
        """Return the plan on this snapshot, which must contain the template's devices.

        Raises UsageError for unknown names.
        """
        return _Planning(self, inventory, catalog, now).plan()


@dataclass(slots=True)
class _Planning:
    """The planning of one question on one snapshot; `world` is the snapshot after the VMs planned so far."""

    question: ClusterQuestion
    inventory: Inventory
    catalog: Catalog
    now: datetime
    network: ClusterNetwork | None = None
    rows: list[Prerequisite] = field(default_factory=list)

    @property
    def wish(self) -> ClusterWish:
        return self.question.wish

    def plan(self) -> ClusterPlan:
        """Check what holds for all VMs (existing VMs, template, port group, GPU model), then plan each VM."""
        existing = marked_vms(self.inventory, self.wish.name)
        refusals = (*too_old(self.inventory), *_foreign_members(self.wish, self.question.id, existing))
        if refusals:
            return self._refuse(refusals)
        template = self.inventory.find_vm(self.wish.template)
        self.rows += template_rows(self.wish, template, self.question.made_for)
        network = network_of(self.wish, self.question.networks)
        if isinstance(network, Prerequisite):
            self.rows.append(network)
        else:
            self.network = network
        # a row in place of the port group is a refusal even if it only says that it is unknown
        failed = tuple(row_refusal(row) for row in self.rows if row.passed is False or row is network)
        if self.wish.profile is None and not gpu_types(self.wish, self.inventory):
            hint = "gpuops inventory --hosts shows the GPUs of each; name one in the file: gpus.model"
            failed += (Rejection(self.wish.name, f"no host has a GPU of model {self.wish.model}", hint=hint),)
        return self._refuse(failed) if failed else self._with_members(template, existing)

    def _refuse(self, reasons: Sequence[Rejection]) -> ClusterPlan:
        return ClusterPlan(self.wish, self.question.id, tuple(self.rows), rejections=tuple(dict.fromkeys(reasons)))

    def _with_members(self, template: Vm, existing: tuple[MarkedVm, ...]) -> ClusterPlan:
        """Return the plan for the existing VMs on their hosts, and for the missing VMs on hosts with room."""
        world, members, warnings = self.inventory, list[PlannedMember](), list[str]()
        # Existing VMs keep their hosts, and their GPUs are planned first: those that are bound to GPUs, then those that
        # have GPUs on any, then clones that have none yet.
        for member in sorted(existing, key=_planning_order):
            outcome = self._plan_member(member.vm, world)
            host = self.inventory.host_of(member.vm)
            if not isinstance(outcome, MemberSteps) or host is None:
                return self._refuse(outcome if not isinstance(outcome, MemberSteps) else ())
            members.append(PlannedMember(member.marker.rank, member.vm.name, host, None, outcome.steps, outcome.says))
            world = outcome.after
            warnings += (*outcome.warnings, *changes_by_admin(self.wish, member.vm, host))
        missing = sorted(set(range(self.wish.nodes)) - {member.marker.rank for member in existing})
        if missing:
            hosts = self._usable_hosts(template)
            room = {host.ref: self._room_on(host, missing, world) for host in hosts}
            # the room of each host was counted without new VMs on other hosts; `_place` below plans them all together
            counts = distribute_vms(
                self.wish.placement,
                {ref: len(fitting) for ref, (fitting, _) in room.items()},
                {ref: sum(member.vm.host == ref for member in existing) for ref in room},
                len(missing),
            )
            if counts is None:
                return self._refuse(tuple(room_rejections(self.wish, hosts, room, len(missing), self.rows)))
            host_of_each_rank = (host for host in hosts for _ in range(counts.get(host.ref, 0)))
            for rank, host in zip(missing, host_of_each_rank, strict=True):
                new_vm = self._plan_clone(rank, host)  # a clone or refusals; `_place` returns refusals as they are
                outcome = self._place(new_vm, world)
                if not isinstance(new_vm, CloneVm) or not isinstance(outcome, MemberSteps):
                    return self._refuse(outcome if not isinstance(outcome, MemberSteps) else ())
                members.append(PlannedMember(rank, new_vm.name, host, new_vm, outcome.steps, outcome.says))
                world = outcome.after
                warnings += outcome.warnings
        members.sort(key=lambda member: member.rank)
        all_warnings = _warn_once(warnings, [name for member in members for name in (member.name, member.host.name)])
        return ClusterPlan(self.wish, self.question.id, tuple(self.rows), tuple(members), warnings=all_warnings)

    def _usable_hosts(self, template: Vm) -> tuple[Host, ...]:
        """Return the hosts that may take a VM, sorted by name. Also append their checks to `rows`."""
        usable_hosts = []
        for host in sorted(self.inventory.hosts.values(), key=lambda host: host.name):
            if not host.gpus or unreachable(host) is not None:
                continue
            if not set(template.datastores) & set(host.datastores or ()) and self.wish.datastore is None:
                continue
            rows = tuple(host_rows(self.wish, host, self.network, self.question.networks, self.inventory))
            self.rows += rows
            if all(row.passed is not False for row in rows):
                usable_hosts.append(host)
        return tuple(usable_hosts)

    def _room_on(self, host: Host, ranks: Sequence[int], world: Inventory) -> HostRoom:
        """Return the VMs that fit on the host, at most those of `ranks`, and the reasons why no further one fits."""
        fitting: list[MemberSteps] = []
        limit = len(ranks)
        if self.wish.rdma is RdmaKind.SRIOV and self.network is not None:
            rdma = self.question.networks.hosts.get(host.ref)
            free = free_functions(host, self.network, rdma, self.inventory) if rdma is not None else None
            limit = min(limit, free or 0)
        for rank in ranks[:limit]:
            outcome = self._place(self._plan_clone(rank, host), world)
            if not isinstance(outcome, MemberSteps):
                return tuple(fitting), outcome
            fitting.append(outcome)
            world = outcome.after
        lacks = Rejection(host.name, "has no free SR-IOV virtual function left")
        return tuple(fitting), (lacks,) if limit < len(ranks) else ()

    def _place(self, new_vm: CloneVm | tuple[Rejection, ...], world: Inventory) -> MemberSteps | tuple[Rejection, ...]:
        if not isinstance(new_vm, CloneVm):
            return new_vm
        world = project(new_vm, world)
        return self._plan_member(world.vm(new_vm.vm), world)

    def _plan_member(self, vm: Vm, world: Inventory) -> MemberSteps | tuple[Rejection, ...]:
        host = world.host_of(vm)
        node = uplink_node(host, self.network, self.question.networks) if self.network and host is not None else None
        kind = _CARDS.get(self.wish.rdma)
        cards = [nic for nic in vm.nics or () if nic.kind == kind]
        if kind and vm.nics is not None and not vm.ref.startswith(NEW_VM) and not cards:
            create_again = f"gpuops cluster delete {self.wish.name}, then create it anew"
            return (Rejection(vm.name, "has no RDMA network card any more", hint=create_again),)
        if vm.power is PowerState.SUSPENDED:
            return (Rejection(vm.name, "is suspended", hint="resume it: its guest may hold unsaved work"),)
        return member_steps(self.wish, vm, node, world, self.catalog, self.now)

    def _plan_clone(self, rank: int, host: Host) -> CloneVm | tuple[Rejection, ...]:
        """Return the clone for this rank on the host, with the marker of the cluster, or all refusals."""
        wish = self.wish
        request = Clone(
            wish.vm_name(rank), wish.template, host.ref, wish.folder, wish.datastore, wish.cpus,
            wish.memory_mib,
        )  # fmt: skip
        cloning = request.planned(self.inventory, self.question.folder)
        if cloning.new is None:
            # neither a clone nor a refusal: a VM of that name exists
            name_in_use = Rejection(wish.vm_name(rank), "a VM of that name exists and does not belong to this cluster")
            return cloning.rejections or (replace(name_in_use, hint="rename that VM or the cluster"),)
        marker = ClusterMarker(wish.name, rank, wish.nodes, self.question.id, wish.digest, wish.gpus, wish.rdma)
        settings = {MARKER_KEY: marker.text, **({HUGE_PAGES: "TRUE"} if wish.huge_pages else {})}
        high = wish.latency is LatencyLevel.HIGH
        if high and host.cpu_mhz is None:
            rule = "its CPU speed cannot be read; latency sensitivity high reserves all of it"
            return (Rejection(host.name, rule, hint="give this login read access to the host (System.Read)"),)
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


def _planning_order(member: MarkedVm) -> tuple[bool, int, int]:
    return not pins_of(member.vm), -len(member.vm.devices or ()), member.marker.rank


def distribute_vms(
    arrangement: Arrangement, room: Mapping[str, int], existing: Mapping[str, int], vm_count: int
) -> dict[str, int] | None:
    """Return the number of VMs for each host that gets one, or None if there is no room for all.

    `room`: by host, how many VMs fit; `existing`: by host, how many VMs of the cluster it has. PACKED uses few hosts;
    SPREAD gives each host about the same number.

    >>> distribute_vms(Arrangement.PACKED, {"a": 2, "b": 4, "c": 3}, {}, 5)
    {'b': 4, 'a': 1}
    >>> distribute_vms(Arrangement.SPREAD, {"a": 2, "b": 4, "c": 3}, {}, 5)
    {'b': 2, 'c': 2, 'a': 1}
    """
    if sum(room.values()) < vm_count:
        return None
    # hosts of the cluster come first: missing VMs go next to the existing ones
    order = sorted(room, key=lambda ref: (-room[ref], ref))
    counts = dict.fromkeys(order, 0)
    if arrangement is Arrangement.SPREAD:
        for _ in range(vm_count):
            free = [ref for ref in order if counts[ref] < room[ref]]
            counts[min(free, key=lambda ref: counts[ref] + existing.get(ref, 0))] += 1
        return {ref: count for ref, count in counts.items() if count}
    remaining = vm_count
    order.sort(key=lambda ref: -existing.get(ref, 0))
    while remaining:
        # PACKED: fill a host that has VMs of the cluster, else the smallest host with room for all remaining VMs, else
        # the largest host
        open_hosts = [ref for ref in order if not counts[ref] and room[ref]]
        with_members = [ref for ref in open_hosts if existing.get(ref, 0)]
        large_enough = [ref for ref in open_hosts if room[ref] >= remaining]
        chosen = (
            with_members[0]
            if with_members
            else min(large_enough, key=lambda ref: room[ref])
            if large_enough
            else open_hosts[0]
        )
        counts[chosen] = min(remaining, room[chosen])
        remaining -= counts[chosen]
    return {ref: count for ref, count in counts.items() if count}


def _warn_once(warnings: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the warnings; a warning about several VMs appears once, for the first VM, with their number."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for line in dict.fromkeys(warnings):
        kind = tuple("" if word in names else "N" if word.isdigit() else word for word in re.split(r"[ :]", line))
        alike.setdefault(kind, []).append(line)
    return tuple(
        lines[0] if len(lines) == 1 else f"{lines[0]} (also for {len(lines) - 1} more)" for lines in alike.values()
    )


def _foreign_members(wish: ClusterWish, cluster_id: str, existing: Sequence[MarkedVm]) -> Iterator[Rejection]:
    """Yield a refusal for each existing VM of this name that does not belong to the cluster of this file.

    Also for copies: two VMs with the same rank.
    """
    removes = f"gpuops cluster delete {wish.name} removes it"
    for member in existing:
        if member.marker.wish != wish.digest:
            yield Rejection(
                member.vm.name,
                f"belongs to a cluster {wish.name} that was made from another version of the file",
                hint=removes,
            )
        elif member.marker.id != cluster_id:
            yield Rejection(member.vm.name, f"belongs to another cluster that is also called {wish.name}", hint=removes)
    ranks = [member.marker.rank for member in existing]
    for member in existing:
        if ranks.count(member.marker.rank) > 1:
            path = member.vm.path or member.vm.ref
            yield Rejection(
                path,
                f"has the same marker as another VM (rank {member.marker.rank} of cluster {wish.name})",
                hint="rename the copy",
            )
