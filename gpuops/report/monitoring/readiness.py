"""What `gpuops readiness` prints: a row for each host, what blocks it, and with --host the moves in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.emptying import LEAVES_BY, Leaving, Staying
from gpuops.plan.hosts.readiness.loss import HostLoss, Stranded
from gpuops.plan.hosts.readiness.question import HostReadiness, Readiness
from gpuops.plan.moving.vmotion_stun import EVACUATION, WHERE, Stun
from gpuops.report.document import DocumentRecord, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count

_FEW: Final = 3
"""Names and reasons on a line."""


def readiness_text(found: Readiness, scope: Scope) -> Shown:
    """The hosts in a table; then what blocks, what vCenter alone would not do, and who has no place after a loss."""
    inventory = found.inventory
    head = (
        f"vCenter {inventory.api_version}: {count(len(found.hosts), 'host')} with GPUs, "
        f"read {format_zoned_minute(inventory.taken_at)}"
    )
    if not found.hosts:
        return (Text(head, "bold"), Text(str(scope.nowhere("readiness", inventory))))
    lines: list[Shown] = [Text(head, "bold"), _hosts_table(found)]
    for each in found.hosts:
        if scope.host is not None and each.away:
            lines += [Text(), Text(f"{each.host.name}: in this order", "bold"), _moves_table(each)]
    lines += [*_blocked(found), *_by_vcenter(found), *_without_place(found), *_notes(found)]
    return (*lines, Text(_summary(found), "bold"))


def _hosts_table(found: Readiness) -> TextTable:
    return table_of(
        found.hosts,
        Column("host", lambda host: host.host.name),
        Column("can be emptied", _emptied_word),
        Column("moves", lambda host: str(len(host.moves)), right=True),
        Column("stun of one", _stuns),
        Column("by vCenter alone", lambda host: "no" if host.by_vcenter or not host.ready else "yes"),
        Column("lost, placed", lambda host: _lost(host.loss)),
    )


def _emptied_word(host: HostReadiness) -> Text:
    if host.ready:
        return Text("yes", "green")
    return Text("no", "bold red") if host.proven else Text("no way found", "yellow")


def _stuns(each: HostReadiness) -> str:
    """The range over all VMs that move; `?` where vCenter tells nothing of one of them."""
    known = list(each.stuns.values())
    if not known:
        return "?" if each.unknown_stuns else "-"
    both = Stun(min(stun.at_least_s for stun in known), max(stun.at_most_s for stun in known))
    return f"{_seconds(both)}{', ? of ' + str(len(each.unknown_stuns)) if each.unknown_stuns else ''}"


def _seconds(stun: Stun) -> str:
    if stun.at_least_s == stun.at_most_s:
        return f"{stun.at_least_s} s"
    return f"{stun.at_least_s} to {stun.at_most_s} s"


def _lost(loss: HostLoss) -> str:
    """`nvidia_a40-8q 5 of 6`, profile by profile."""
    parts = [f"{each.profile} {each.placed} of {each.running}" for each in loss.profiles]
    return ", ".join(parts) or "nothing to lose"


def _moves_table(each: HostReadiness) -> TextTable:
    table = TextTable("", "VM", "how", "to", "stun", right=(0,), whole=(1, 3))
    for number, away in enumerate(each.away, 1):
        stun = each.stuns.get(away.vm.ref)
        unknown = "?" if away.vm.vgpus and away.leaving is Leaving.VMOTION else "-"
        target = away.target.name if away.target is not None else "where DRS puts it"
        row = (away.vm.name, away.leaving.value, target, unknown if stun is None else _seconds(stun))
        table.add_row(str(number), *row)
    return table


def _blocked(found: Readiness) -> Iterator[Text]:
    """A line for all VMs of a host that stay for the same reasons; the next move is that of the first."""
    for each in found.hosts:
        name = each.host.name
        if each.unreachable is not None:
            yield Text("blocks: ", "red").append(str(each.unreachable))
            yield from _next(each.unreachable.hint)
        alike: dict[tuple[str, ...], list[Staying]] = {}
        for stays in each.stays:
            alike.setdefault(stays.reasons, []).append(stays)
        for reasons, group in alike.items():
            names = _names([stays.vm for stays in group])
            yield Text("blocks: ", "red").append(f"{name}: {names} cannot leave it while running: ")
            yield Text(f"        {'; '.join(reasons)}")
            yield from _next(group[0].rejection.hint)
        if not each.proven:
            yield Text(f"        not every order of moves of {name} was tried: one may hold", "dim")


def _next(hint: str) -> Iterator[Text]:
    if hint:
        yield Text(f"        next: {hint}", "dim")


def _names(vms: Sequence[Vm]) -> str:
    names = [vm.name for vm in vms]
    return ", ".join(names if len(names) <= _FEW else [*names[:_FEW], f"and {len(names) - _FEW} more"])


def _by_vcenter(found: Readiness) -> Iterator[Text]:
    """Once for all hosts of a cluster, which share the reasons."""
    for reasons in dict.fromkeys(each.by_vcenter for each in found.hosts if each.by_vcenter):
        yield Text("vCenter alone: ", "yellow").append("entering maintenance mode waits for VMs with vGPUs")
        yield from (Text(f"        {reason}") for reason in reasons)
        if any(EVACUATION in reason for reason in reasons):
            yield from _next(f"{EVACUATION} = -1 in {WHERE}")


def _without_place(found: Readiness) -> Iterator[Text]:
    """Who starts nowhere if the host is lost, with what hosts say to the first of them."""
    for each in found.hosts:
        stranded = each.loss.stranded
        if stranded:
            names = _names([one.vm for one in stranded])
            yield Text(f"lost {each.host.name}: ", "yellow").append(f"no place elsewhere: {names}")
            first = stranded[0].reasons
            more = f"; and {len(first) - _FEW} more" if len(first) > _FEW else ""
            yield Text(f"        {'; '.join(first[:_FEW]) + more}")
        if not each.loss.proven:
            yield Text(f"        not every way was tried for {each.host.name}: one may hold", "dim")


def _notes(found: Readiness) -> Iterator[Text]:
    for each in found.hosts:
        for note in each.notes:
            yield Text(f"note: {each.host.name}: {note}", "dim")


def _summary(found: Readiness) -> str:
    ready = sum(each.ready for each in found.hosts)
    spared = sum(each.loss.spared for each in found.hosts)
    every = count(len(found.hosts), "host")
    return f"{ready} of {every} can be emptied, {spared} can be lost; nothing was changed"


class StunRecord(DocumentRecord, frozen=True):
    """How long a vMotion stops a VM, at the fastest and at the slowest bandwidth that vCenter tells of."""

    at_least_s: int
    at_most_s: int


class LeavingNowRecord(DocumentRecord, frozen=True):
    """A VM that leaves a host."""

    vm: NamedRecord
    leaves_by: Annotated[str, "vmotion, drs, shut_down or power_off"]
    target: Annotated[str | None, "the host's name; null = where DRS puts it"]
    stun: Annotated[StunRecord | None, "by vCenter's own estimate; null = it tells none, or the VM has no vGPU"]


class ProfileLossRecord(DocumentRecord, frozen=True):
    """The vGPUs of one profile, or the whole GPUs, that VMs of the host run with."""

    profile: Annotated[str, "whole GPU for DirectPath"]
    running: int
    placed: Annotated[int, "so many come back elsewhere"]


class NewPlaceRecord(DocumentRecord, frozen=True):
    """Where a VM would start."""

    vm: NamedRecord
    host: str


class StrandedVmRecord(DocumentRecord, frozen=True):
    """A VM that would start nowhere."""

    vm: NamedRecord
    because: list[str]

    @classmethod
    def made_of(cls, stranded: Stranded) -> Self:
        return cls.from_attributes(stranded, because=stranded.reasons)


class LossRecord(DocumentRecord, frozen=True):
    """What becomes of the VMs with GPUs of a host that is dead."""

    spared: Annotated[bool, "whether each of them has a place elsewhere"]
    proven: Annotated[bool, "false = not every way was tried, and there may be one with a place for all"]
    profiles: list[ProfileLossRecord]
    places: Annotated[list[NewPlaceRecord], "in this order"]
    without_place: list[StrandedVmRecord]

    @classmethod
    def made_of(cls, loss: HostLoss) -> Self:
        places = [NewPlaceRecord.from_attributes(vm=vm, host=host.name) for vm, host in loss.places]
        return cls.from_attributes(loss, places=places, without_place=loss.stranded)


class HostReadinessRecord(DocumentRecord, frozen=True):
    """One host, as if it alone were emptied, or failed."""

    host: NamedRecord
    cluster: Annotated[str | None, "its name"]
    ready: Annotated[bool, "whether all that must leave it can"]
    proven: Annotated[bool, "false = not every order of moves was tried, and there may be one that empties it"]
    leaving: Annotated[list[LeavingNowRecord], "in this order"]
    blockers: Annotated[list[RejectionRecord], "not empty = it cannot be emptied"]
    maintenance_mode_waits_because: Annotated[list[str], "why vCenter alone moves no VM with a vGPU off it"]
    notes: list[str]
    lost: LossRecord


@printed("readiness", by="gpuops readiness")
class ReadinessDocument(VersionedSiteDocument, frozen=True):
    """Whether hosts can be emptied, and whether one can be lost."""

    ready: Annotated[bool, "whether each of the hosts can be emptied"]
    hosts: Annotated[list[HostReadinessRecord], "by name"]


def readiness_document(found: Readiness) -> ReadinessDocument:
    """The same for programs, with the moves of every host."""
    inventory, hosts = found.inventory, [_host(each, found) for each in found.hosts]
    return ReadinessDocument.from_attributes(found, inventory, read_at=inventory.taken_at, hosts=hosts)


def _host(each: HostReadiness, found: Readiness) -> HostReadinessRecord:
    cluster = found.inventory.clusters.get(each.host.cluster or "")
    leaving = [
        LeavingNowRecord.from_attributes(
            away,
            leaves_by=LEAVES_BY[away.leaving],
            target=away.target.name if away.target is not None else None,
            stun=each.stuns.get(away.vm.ref),
        )
        for away in each.away
    ]
    return HostReadinessRecord.from_attributes(
        each,
        cluster=cluster.name if cluster is not None else None,
        leaving=leaving,
        maintenance_mode_waits_because=each.by_vcenter,
        lost=each.loss,
    )
