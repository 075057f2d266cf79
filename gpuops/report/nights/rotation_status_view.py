"""Text and documents of `rotate status`, `rotate overdue`, `rotate audit` and `rotate unlock`.

The VMs of open nights and where they are now, and whether the journal is as gpuops wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.model.nights.history import Audit, AuditedChain
from gpuops.model.nights.night_record import Role
from gpuops.model.time_text import format_zoned_minute, format_zoned_second
from gpuops.plan.rotation.lease_rules import Lease, lease_holder_text
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, Ref, VcenterDocument, printed
from gpuops.report.given_up_view import GivenUpRecord, missed_lines
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count

_STYLES = {
    Whereabouts.AWAY: "yellow",
    Whereabouts.CHANGING: "cyan",
    Whereabouts.BACK: "green",
    Whereabouts.UNTOUCHED: "dim",
    Whereabouts.LOST: "bold red",
    Whereabouts.GONE: "bold red",
    Whereabouts.FOREIGN: "yellow",
    Whereabouts.GIVEN_UP: "magenta",
    Whereabouts.UNKNOWN: "yellow",
}

NO_LOCK_VM: Final = "the policy has no lock_vm: a run on another machine is not seen"


def status_text(status: RotationStatus) -> Iterator[Shown]:
    """Yield runs under way or cut off, warnings, a summary with notes, and a table of the VMs of open nights."""
    if status.journal_lost:
        yield Text(f"{status.journal_lost}: this is what vCenter's markers say", "bold red")
        yield Text("next: gpuops rotate day --policy FILE brings back the VMs that they name")
    yield from _run_lines(status)
    for night in status.skipped:
        yield Text(f"night {night} is skipped: gpuops rotate skip-next --undo takes that back", "yellow")
    yield from _overdue_lines(status.overdue, status.overdue_unknown)
    yield from (Text(f"warning: {text}", "yellow") for text in status.timers)
    if status.vms:
        policy = f"policy {status.policy}: " if status.policy else ""
        yield Text(f"{policy}{count(len(status.away), 'VM')} away{_other_counts(status)}", "bold")
    else:
        yield Text("no night is open: nothing is suspended or running for a rotation", "bold")
    if not status.remembered and not status.journal_lost:
        note = f"the journal of this machine has no night of this vCenter: only the marker {status.marker} was read"
        yield Text(note if status.policy else f"{note}; --policy FILE reads the marker of a policy", "dim")
    yield from missed_lines(status.given_up)
    if status.policy is not None and status.lock_vm is None:
        yield Text(NO_LOCK_VM, "dim")
    if status.vms:
        yield _vms_table(status)


def _run_lines(status: RotationStatus) -> Iterator[Text]:
    """Yield the run that is under way, the run that was cut off, and the holder of the lease."""
    if status.under_way is not None:
        sign_of_life = status.under_way.seen
        life_note = f", last sign of life {format_zoned_second(sign_of_life)}" if sign_of_life is not None else ""
        yield Text(f"{status.doing or 'a rotation'} is under way: {status.under_way}{life_note}", "bold cyan")
    if status.cut_off is not None:
        since = f"at {format_zoned_minute(status.cut_off_since)} " if status.cut_off_since else ""
        yield Text(f"{status.cut_off} began {since}and did not end", "bold red")
        yield Text("next: gpuops rotate resume finishes it")
    if status.lock_trouble:
        yield Text(f"warning: {status.lock_trouble}", "yellow")
    elif status.lease is not None:
        yield Text(f"{lease_holder_text(status.lease)} (id {status.lease.nonce})", "cyan")


class LeaseRecord(DocumentRecord, frozen=True):
    """The holder of the lease on a lock VM, and its end by vCenter's clock."""

    owner: Annotated[str, "machine and process"]
    id: Annotated[str, "of this run"]
    epoch: Annotated[int, "the number of the lease, higher with each new holder"]
    expires: Moment

    @classmethod
    def made_of(cls, lease: Lease) -> Self:
        return cls.from_attributes(lease, id=lease.nonce)


class OverdueRecord(DocumentRecord, frozen=True):
    """A vCenter whose nights have closed without a recorded return."""

    vcenter: Annotated[str, "its instance uuid"]
    vms: Annotated[list[str], "names of VMs that are not known to be back"]
    closed: Annotated[Moment, "when the first of their nights closed"]
    last_return: Annotated[Moment | None, "when a return last wrote to the journal"]


class RunUnderWayRecord(DocumentRecord, frozen=True):
    """A run that rotates from this machine now."""

    kind: Annotated[str | None, "null = it has not begun to change anything"]
    pid: int | None
    since: Moment | None


class TakenVmRecord(DocumentRecord, frozen=True):
    """A VM of a night that is not over."""

    ref: Ref
    name: str
    instance_uuid: str | None
    role: Role
    night: str
    host: Annotated[str | None, "where it was"]
    profiles: list[str]
    whereabouts: Whereabouts
    reason: str
    first: Annotated[str, "what to do before the command; empty = nothing"]
    command: Annotated[str, "the command that brings it back; empty = none can, or none is needed"]


@printed("rotation-status", by="gpuops rotate status")
class RotationStatusDocument(VcenterDocument, frozen=True):
    """The VMs of open nights and where each is now, and whether a run is under way or was cut off."""

    policy: Annotated[str | None, "its name"]
    remembered: Annotated[bool, "whether the journal of this machine knows a night of this vCenter"]
    journal_lost: Annotated[str | None, "why the journal cannot be read"]
    under_way: RunUnderWayRecord | None
    cut_off: Annotated[str | None, "the command that was cut off; gpuops rotate resume finishes it"]
    cut_off_since: Moment | None
    lock_vm: str | None
    lease: LeaseRecord | None
    lock_trouble: Annotated[str | None, "why the holder of the lease cannot be read"]
    skipped: Annotated[list[str], "nights that are not to be taken"]
    given_up: list[GivenUpRecord]
    overdue: Annotated[list[OverdueRecord], "vCenters of this journal, also others, without a return"]
    overdue_unknown: Annotated[list[str], "vCenters that cannot be checked, and why"]
    timers: Annotated[
        list[str], "where the timers and cron lines of this machine do not meet the windows of the policy"
    ]
    away: Annotated[int, "how many VMs"]
    changing: Annotated[int, "how many VMs"]
    vms: list[TakenVmRecord]


def status_document(status: RotationStatus) -> RotationStatusDocument:
    """Return the status as a document."""
    holder = status.under_way
    return RotationStatusDocument.from_attributes(
        status,
        journal_lost=status.journal_lost or None,
        under_way=RunUnderWayRecord.from_attributes(holder, kind=status.doing) if holder is not None else None,
        lock_trouble=status.lock_trouble or None,
        away=len(status.away),
        changing=len(status.changing),
        vms=[
            TakenVmRecord.from_attributes(
                taken_vm,
                taken_vm.original,
                ref=taken_vm.original.vm,
                instance_uuid=taken_vm.original.uuid,
                host=status.names.get(taken_vm.original.host or "", taken_vm.original.host),
            )
            for taken_vm in status.vms
        ],
    )


def _other_counts(status: RotationStatus) -> str:
    """Return the VMs that are neither away nor back: `, 2 changing, 1 lost`."""
    not_counted = (Whereabouts.AWAY, Whereabouts.BACK, Whereabouts.UNTOUCHED)  # away: counted before these
    counts = Counter(taken_vm.whereabouts for taken_vm in status.vms if taken_vm.whereabouts not in not_counted)
    return "".join(f", {counts[kind]} {kind}" for kind in Whereabouts if counts[kind])


def _vms_table(status: RotationStatus) -> TextTable:
    has_next = status.under_way is None  # while a run is under way, no other command is the next move
    return table_of(
        status.vms,
        Column("VM", lambda vm: vm.original.name),
        Column("role", lambda vm: vm.original.role.value),
        Column("night", lambda vm: vm.original.night),
        Column("was on", lambda vm: status.names.get(vm.original.host or "", vm.original.host or "unknown")),
        Column("now", lambda vm: Text(vm.whereabouts.value, _STYLES[vm.whereabouts])),
        Column("why", lambda vm: vm.reason),
        Column("next", lambda vm: _advice(vm, status)) if has_next else None,
    )


def _advice(taken_vm: TakenVm, status: RotationStatus) -> str:
    """Return what to type for one VM; nothing if `rotate resume`, which is named above the table, brings it back."""
    # `rotate resume`, shown above the table, comes before a return
    if status.cut_off is not None and taken_vm.advice == RETURN_COMMAND:
        return ""
    return taken_vm.advice


def all_overdue_text(vcenters: Sequence[Overdue], unreadable: Sequence[str]) -> Shown:
    """Return one line for each overdue vCenter and for each one whose journal cannot be read."""
    return _overdue_lines(vcenters, unreadable) or Text("no vCenter is overdue: each night that is over has a return")


def _overdue_lines(vcenters: Sequence[Overdue], unreadable: Sequence[str]) -> list[Text]:
    lines = [Text(f"overdue: {vcenter}; next: {vcenter.next_move}", "bold red") for vcenter in vcenters]
    return lines + [Text(f"whether it is returned is not known: {reason}", "red") for reason in unreadable]


@printed("rotation-overdue", by="gpuops rotate overdue")
class RotationOverdueDocument(PrintedDocument, frozen=True):
    """The vCenters of the journal with a closed night that no run has returned yet."""

    overdue: Annotated[list[OverdueRecord], "those with desktops away"]
    overdue_unknown: Annotated[list[str], "why some vCenters cannot be checked"]


def audit_text(audit: Audit) -> Shown:
    """Return a line for each vCenter, and the verdict on the journal."""
    lines = [Text(_chain_line(chain), "red" if chain.bad else "") for chain in audit.chains]
    if audit.damage:
        lines.append(Text(audit.damage, "red"))
    verdict = "as gpuops wrote it" if audit.chains else "nothing was recorded yet"
    if not audit.whole:
        verdict = "changed by a program other than gpuops"
    lines.append(Text(f"{verdict}: {audit.journal}", "bold"))
    if not audit.whole:
        lines.append(
            Text("next: gpuops rotate day --policy FILE follows vCenter's markers; then move the journal away")
        )
    return lines


class AuditedChainRecord(DocumentRecord, frozen=True):
    """The records of one vCenter."""

    vcenter: Annotated[str, "its instance uuid; after `book of` for its pools and jobs"]
    good_records: int
    first_at: Moment | None
    last_at: Moment | None
    head: Annotated[str, "the number and checksum of the last good record"]
    bad: Annotated[str | None, "the first record that does not fit, and what is wrong with it"]

    @classmethod
    def made_of(cls, chain: AuditedChain) -> Self:
        moments = {"first_at": chain.first, "last_at": chain.last}
        return cls.from_attributes(chain, good_records=chain.good, bad=chain.bad or None, **moments)


@printed("rotate-audit", by="gpuops rotate audit verify")
class RotateAuditDocument(PrintedDocument, frozen=True):
    """Whether the journal is as gpuops wrote it."""

    journal: Annotated[str, "where it is"]
    whole: bool
    damage: str | None
    vcenters: list[AuditedChainRecord]

    @classmethod
    def made_of(cls, audit: Audit) -> Self:
        return cls.from_attributes(audit, damage=audit.damage or None, vcenters=audit.chains)


@printed("rotate-unlock", by="gpuops rotate unlock")
class RotateUnlockDocument(PrintedDocument, frozen=True):
    """The lease that was given back."""

    lease: LeaseRecord


def _chain_line(chain: AuditedChain) -> str:
    good = f"{chain.good:,} record{'' if chain.good == 1 else 's'}"
    if chain.first and chain.last:
        good += f" from {format_zoned_minute(chain.first)} to {format_zoned_minute(chain.last)}"
    if chain.bad:
        return f"vCenter {chain.vcenter}: {chain.bad}; only the {good} before it can be trusted"
    return f"vCenter {chain.vcenter}: {good}, head {chain.head}"
