"""Text and document of `gpuops readiness`: a row for each host, its blockers, and with --host the moves in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.emptying import LEAVES_BY, Leaving, Staying
from gpuops.plan.hosts.readiness import HostLoss, HostReadiness, Readiness, Stranded
from gpuops.plan.moving.vmotion_stun import EVACUATION, WHERE, Stun
from gpuops.report.document import DocumentRecord, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count, vcenter_heading

_MOST_NAMED: Final = 3
"""Number of names or reasons on a line."""


def readiness_text(readiness: Readiness, scope: Scope) -> Shown:
    """Return the table of hosts, what blocks them, what DRS would not do, and VMs without a place after a loss."""
    inventory = readiness.inventory
    heading = vcenter_heading(inventory, f"{count(len(readiness.hosts), 'host')} with GPUs")
    if not readiness.hosts:
        return (heading, Text(str(scope.nowhere("readiness", inventory))))
    lines: list[Shown] = [heading, _hosts_table(readiness)]
    for host in readiness.hosts:
        if scope.host is not None and host.away:
            lines += [Text(), Text(f"{host.host.name}: in this order", "bold"), _moves_table(host)]
    lines += [*_blockers(readiness), *_vcenter_obstacles(readiness), *_stranded_lines(readiness)]
    lines += [Text(f"note: {host.host.name}: {note}", "dim") for host in readiness.hosts for note in host.notes]
    ready = sum(host.ready for host in readiness.hosts)
    spared = sum(host.loss.spared for host in readiness.hosts)
    host_count = count(len(readiness.hosts), "host")
    summary = f"{ready} of {host_count} can be emptied, {spared} can be lost; nothing was changed"
    return (*lines, Text(summary, "bold"))


def _hosts_table(readiness: Readiness) -> TextTable:
    return table_of(
        readiness.hosts,
        Column("host", lambda host: host.host.name),
        Column("can be emptied", _emptied_word),
        Column("moves", lambda host: str(len(host.moves)), right=True),
        Column("stun of one", _stun_text),
        Column("by vCenter alone", lambda host: "no" if host.by_vcenter or not host.ready else "yes"),
        Column("lost, placed", lambda host: _loss_text(host.loss)),
    )


def _emptied_word(host: HostReadiness) -> Text:
    if host.ready:
        return Text("yes", "green")
    return Text("no", "bold red") if host.proven else Text("no way found", "yellow")


def _stun_text(host: HostReadiness) -> str:
    """Return the range of stun times of all VMs that move; `?` for VMs without an estimate by vCenter."""
    stuns = list(host.stuns.values())
    if not stuns:
        return "?" if host.unknown_stuns else "-"
    stun_range = Stun(min(stun.at_least_s for stun in stuns), max(stun.at_most_s for stun in stuns))
    return f"{_seconds(stun_range)}{', ? of ' + str(len(host.unknown_stuns)) if host.unknown_stuns else ''}"


def _seconds(stun: Stun) -> str:
    if stun.at_least_s == stun.at_most_s:
        return f"{stun.at_least_s} s"
    return f"{stun.at_least_s} to {stun.at_most_s} s"


def _loss_text(loss: HostLoss) -> str:
    """Return `nvidia_a40-8q 5 of 6` for each profile."""
    parts = [f"{lost.profile} {lost.placed} of {lost.running}" for lost in loss.profiles]
    return ", ".join(parts) or "nothing to lose"


def _moves_table(host: HostReadiness) -> TextTable:
    table = TextTable("", "VM", "how", "to", "stun", right=(0,), whole=(1, 3))
    for number, move in enumerate(host.away, 1):
        stun = host.stuns.get(move.vm.ref)
        unknown = "?" if move.vm.vgpus and move.leaving is Leaving.VMOTION else "-"
        target = move.target.name if move.target is not None else "where DRS puts it"
        row = (move.vm.name, move.leaving.value, target, unknown if stun is None else _seconds(stun))
        table.add_row(str(number), *row)
    return table


def _blockers(readiness: Readiness) -> Iterator[Text]:
    """Yield one line for all VMs of a host that stay for the same reasons, with the next step for the first VM."""
    for host in readiness.hosts:
        name = host.host.name
        if host.unreachable is not None:
            yield Text("blocks: ", "red").append(str(host.unreachable))
            yield from _next_line(host.unreachable.hint)
        vms_by_reasons: dict[tuple[str, ...], list[Staying]] = {}
        for staying_vm in host.stays:
            vms_by_reasons.setdefault(staying_vm.reasons, []).append(staying_vm)
        for reasons, group in vms_by_reasons.items():
            names = _names([staying_vm.vm for staying_vm in group])
            yield Text("blocks: ", "red").append(f"{name}: {names} cannot leave it while running: ")
            yield Text(f"        {'; '.join(reasons)}")
            yield from _next_line(group[0].rejection.hint)
        if not host.proven:
            yield Text(f"        not every order of moves of {name} was tried: another one may work", "dim")


def _next_line(hint: str) -> Iterator[Text]:
    if hint:
        yield Text(f"        next: {hint}", "dim")


def _names(vms: Sequence[Vm]) -> str:
    names = [vm.name for vm in vms]
    return ", ".join(
        names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], f"and {len(names) - _MOST_NAMED} more"]
    )


def _vcenter_obstacles(readiness: Readiness) -> Iterator[Text]:
    """Yield why vCenter alone would not empty a host; hosts of a cluster share the reasons."""
    for reasons in dict.fromkeys(host.by_vcenter for host in readiness.hosts if host.by_vcenter):
        yield Text("vCenter alone: ", "yellow").append("entering maintenance mode waits for VMs with vGPUs")
        yield from (Text(f"        {reason}") for reason in reasons)
        if any(EVACUATION in reason for reason in reasons):
            yield from _next_line(f"{EVACUATION} = -1 in {WHERE}")


def _stranded_lines(readiness: Readiness) -> Iterator[Text]:
    """Yield the VMs that could start nowhere if the host is lost, with the reasons for the first of them."""
    for host in readiness.hosts:
        stranded = host.loss.stranded
        if stranded:
            names = _names([stranded_vm.vm for stranded_vm in stranded])
            yield Text(f"lost {host.host.name}: ", "yellow").append(f"no place elsewhere: {names}")
            reasons = stranded[0].reasons
            further = f"; and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
            yield Text(f"        {'; '.join(reasons[:_MOST_NAMED]) + further}")
        if not host.loss.proven:
            yield Text(
                f"        not every placement of the VMs of {host.host.name} was tried: another one may work", "dim"
            )


class StunRecord(DocumentRecord, frozen=True):
    """How long a vMotion stops a VM, at the fastest and the slowest bandwidth that vCenter estimates with."""

    at_least_s: int
    at_most_s: int


class LeavingNowRecord(DocumentRecord, frozen=True):
    """A VM that leaves a host."""

    vm: NamedRecord
    leaves_by: Annotated[str, "vmotion, drs, shut_down or power_off"]
    target: Annotated[str | None, "the host's name; null = where DRS puts it"]
    stun: Annotated[StunRecord | None, "vCenter's estimate; null = it has none, or the VM has no vGPU"]


class ProfileLossRecord(DocumentRecord, frozen=True):
    """The vGPUs of one profile, or the whole GPUs, that VMs of the host run with."""

    profile: Annotated[str, "whole GPU for DirectPath"]
    running: int
    placed: Annotated[int, "how many come back on other hosts"]


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
    """What happens to the VMs with GPUs of a failed host."""

    spared: Annotated[bool, "whether each of them has a place elsewhere"]
    proven: Annotated[bool, "false = not every placement was tried, and one may have a place for all"]
    profiles: list[ProfileLossRecord]
    places: Annotated[list[NewPlaceRecord], "in this order"]
    without_place: list[StrandedVmRecord]

    @classmethod
    def made_of(cls, loss: HostLoss) -> Self:
        places = [NewPlaceRecord.from_attributes(vm=vm, host=host.name) for vm, host in loss.places]
        return cls.from_attributes(loss, places=places, without_place=loss.stranded)


class HostReadinessRecord(DocumentRecord, frozen=True):
    """One host, as if it were the only one to be emptied or to fail."""

    host: NamedRecord
    cluster: Annotated[str | None, "its name"]
    ready: Annotated[bool, "whether all VMs that must leave it can leave"]
    proven: Annotated[bool, "false = not every order of moves was tried, and there may be one that empties it"]
    leaving: Annotated[list[LeavingNowRecord], "in this order"]
    blockers: Annotated[list[RejectionRecord], "not empty = it cannot be emptied"]
    maintenance_mode_waits_because: Annotated[list[str], "why vCenter alone would not move VMs with vGPUs off it"]
    notes: list[str]
    lost: LossRecord


@printed("readiness", by="gpuops readiness")
class ReadinessDocument(VersionedSiteDocument, frozen=True):
    """Whether hosts can be emptied, and whether one can be lost."""

    ready: Annotated[bool, "whether each of the hosts can be emptied"]
    hosts: Annotated[list[HostReadinessRecord], "by name"]


def readiness_document(readiness: Readiness) -> ReadinessDocument:
    """Return the hosts with their moves as a document."""
    inventory, hosts = readiness.inventory, [_host_record(host, readiness) for host in readiness.hosts]
    return ReadinessDocument.from_attributes(readiness, inventory, read_at=inventory.taken_at, hosts=hosts)


def _host_record(host: HostReadiness, readiness: Readiness) -> HostReadinessRecord:
    cluster = readiness.inventory.clusters.get(host.host.cluster or "")
    leaving = [
        LeavingNowRecord.from_attributes(
            move,
            leaves_by=LEAVES_BY[move.leaving],
            target=move.target.name if move.target is not None else None,
            stun=host.stuns.get(move.vm.ref),
        )
        for move in host.away
    ]
    return HostReadinessRecord.from_attributes(
        host,
        cluster=cluster.name if cluster is not None else None,
        leaving=leaving,
        maintenance_mode_waits_because=host.by_vcenter,
        lost=host.loss,
    )
