"""Text and documents of `rotate preset`, `rotate adopt` and `rotate timers`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final, Self

from msgspec import field

from gpuops.model.nights.runners import Half
from gpuops.model.time_text import format_clock, format_minute
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.steps import CreateVm
from gpuops.plan.rotation.nights.bounds import Skip
from gpuops.plan.rotation.prerequisites import NO_SNAPSHOTS, Setup, snapshot_problem
from gpuops.plan.rotation.returns.foreign_nights import Adoption
from gpuops.plan.rotation.timers import CallLine, Timers
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count

MOST_NAMED: Final = 8
"""Number of desktops named in one line; the document has all of them."""


def setup_text(setup: Setup) -> Iterator[Text]:
    """Yield what exists, what was made or is missing, and which desktops their owners have not marked."""
    word, style = ("made", "green") if setup.made else ("missing", "yellow")
    for name in setup.attributes:
        is_missing = name in setup.undefined
        yield _state_line(word if is_missing else "there", f"custom attribute {name}", style if is_missing else "dim")
    new_vm = setup.lock_vm_missing
    if new_vm is not None:
        subject = f"VM {new_vm.name} on {new_vm.host_name}, datastore {new_vm.datastore}, powered off"
        yield _state_line(word, subject, style)
    elif setup.lock_vm is not None:
        yield _state_line("there", f"VM {setup.lock_vm}", "dim")
    else:
        yield Text("note: the policy has no lock_vm: a run on another machine is not seen", "dim")
    if setup.lock_vm is not None and (revert_risk := snapshot_problem(setup.lock_vm_snapshots)):
        yield Text(f"warning: {setup.lock_vm} {revert_risk}; {NO_SNAPSHOTS}", "yellow")
    if setup.lock_vm is not None:
        yield Text(f"note: nights need VirtualMachine.Config.AdvancedConfig on {setup.lock_vm}", "dim")
    if setup.keeps_drs_off:
        yield Text("note: nights need Host.Inventory.EditCluster on the clusters of the ML VMs (drs_override)", "dim")
    for unmarked in setup.unmarked:
        names = some_names(unmarked.desktops, MOST_NAMED)
        yield Text(
            f"warning: pool {unmarked.pool}: {len(unmarked.desktops)} of {count(unmarked.of, 'desktop')} "
            f"without {unmarked.mark}, so no night takes them: {names}; gpuops help marks explains how to set it",
            "yellow",
        )
    yield Text(_summary(setup), "bold")


def _state_line(word: str, subject: str, style: str) -> Text:
    return Text(f"{word:<8} {subject}", style)


def _summary(setup: Setup) -> str:
    number = len(setup.undefined) + (setup.lock_vm_missing is not None)
    if not number:
        return "everything exists: nothing to do"
    return f"{count(number, 'object')} made" if setup.made else f"{count(number, 'object')} missing, nothing changed"


class AttributeRecord(DocumentRecord, frozen=True):
    """A custom attribute that the policy names."""

    name: str
    defined: bool


class LockVmPlaceRecord(DocumentRecord, frozen=True):
    """Where the lock VM is made."""

    host: str
    datastore: str

    @classmethod
    def made_of(cls, new: CreateVm) -> Self:
        return cls(new.host_name, new.datastore)


class UnmarkedRecord(DocumentRecord, frozen=True):
    """Desktops of a pool that lack its owner's mark."""

    pool: str
    mark: str
    desktops: list[str]


@printed("rotate-init", by="gpuops rotate init")
class RotateInitDocument(PrintedDocument, frozen=True):
    """What a policy needs in a vCenter, and what of it is missing."""

    policy: Annotated[str, "its name"]
    attributes: list[AttributeRecord]
    lock_vm: str | None
    lock_vm_made_on: Annotated[LockVmPlaceRecord | None, "null = it exists, or the policy has none"]
    lock_vm_snapshots: int | None
    keeps_drs_off: bool
    unmarked: list[UnmarkedRecord]
    complete: bool
    changed: Annotated[bool, "whether the missing parts were made"]


def setup_document(setup: Setup) -> RotateInitDocument:
    """Return the setup as a document."""
    return RotateInitDocument.from_attributes(
        setup,
        attributes=[AttributeRecord(name, name not in setup.undefined) for name in setup.attributes],
        lock_vm_made_on=setup.lock_vm_missing,
        lock_vm_snapshots=setup.lock_vm_snapshots if setup.lock_vm is not None else None,
        complete=setup.complete or setup.made,
        changed=setup.made,
    )


def skip_text(skip: Skip) -> Text:
    """Return which night is skipped, or is not skipped any more."""
    opens, closes = (moment.astimezone(skip.night.zone) for moment in (skip.night.opens, skip.night.closes))
    night = f"night {skip.night.id} of policy {skip.policy}, from {format_minute(opens)} to {format_clock(closes)}"
    if not skip.skipped:
        return Text(f"{night}, is not skipped{' any more' if skip.changed else ''}")
    already = "" if skip.changed else "already "
    return Text(f"{night}, is {already}skipped; gpuops rotate skip-next --undo takes that back")


@printed("rotate-skip-next", by="gpuops rotate skip-next")
class RotateSkipNextDocument(PrintedDocument, frozen=True):
    """Which night is left out."""

    policy: Annotated[str, "its name"]
    night: str
    opens: Moment
    closes: Moment
    skipped: bool
    changed: Annotated[bool, "false = nothing was to be changed"]


def skip_document(skip: Skip) -> RotateSkipNextDocument:
    """Return the skipped night as a document."""
    return RotateSkipNextDocument.from_attributes(skip, skip.night, night=skip.night.id)


def adoption_text(adoption: Adoption) -> Shown:
    """Return which VMs this vCenter returns from now on, and which stay with the other one."""
    outcome_word = "adopted" if adoption.applied else "would be adopted"
    stay_line = f"  stay with that vCenter, because they are not here: {', '.join(adoption.not_here)}"
    return (
        *(Text(f"  {name}") for name in adoption.adopted),
        *((Text(stay_line),) if adoption.not_here else ()),
        Text(f"{count(len(adoption.adopted), 'VM')} of vCenter {adoption.from_vcenter}: {outcome_word}", "bold"),
        *((Text("next: gpuops rotate day brings them back", "yellow"),) if adoption.applied else ()),
    )


@printed("rotate-adopt", by="gpuops rotate adopt")
class RotateAdoptDocument(PrintedDocument, frozen=True):
    """Which VMs of nights of another vCenter this vCenter brings back."""

    from_: Annotated[str, "instance uuid of the vCenter whose nights took them"] = field(name="from")
    to: Annotated[str, "instance uuid of this vCenter"]
    adopted: Annotated[list[str], "names of the VMs"]
    not_here: Annotated[list[str], "names of VMs that this vCenter does not have"]
    applied: Annotated[bool, "false of a dry run"]


def adoption_document(adoption: Adoption) -> RotateAdoptDocument:
    """Return the adoption as a document."""
    return RotateAdoptDocument.from_attributes(adoption, from_=adoption.from_vcenter, to=adoption.to_vcenter)


def systemd_text(timers: Timers) -> str:
    """Return a drop-in for the systemd timer of each half (night, day) of a rotation."""
    return "\n\n".join(_drop_in(half, timers.systemd[half]) for half in Half)


def _drop_in(half: Half, lines: Sequence[CallLine]) -> str:
    unit = f"gpuops-{half}.timer"
    head = f"# {unit}, which calls `gpuops rotate {half} --by-timer`: systemctl edit {unit}"
    calendars = (f"OnCalendar={line.systemd}" for line in lines)
    return "\n".join(
        (head, "[Timer]", "# an empty value takes back the calls that the unit has", "OnCalendar=", *calendars)
    )


def cron_text(timers: Timers, policy_file: str, vcenter: str | None) -> str:
    """Return the lines of a crontab, with comments about their time zone."""
    return "\n".join(_crontab(timers, policy_file, vcenter))


def _crontab(timers: Timers, policy_file: str, vcenter: str | None) -> Iterator[str]:
    """Yield the lines of a crontab that call the night and the return."""
    if timers.has_cron_tz:
        yield "# CRON_TZ is read by cronie alone; for another cron: gpuops rotate timers --cron --no-cron-tz"
    else:
        yield f"# In this machine's own hours ({timers.machine_zone}), for a cron that does not read CRON_TZ. They"
        yield "# cover summer and winter time, and a call at another hour does nothing (--by-timer). Render them anew"
        yield "# when the zone of this machine changes."
    words = ["--policy", policy_file, "--yes", "--quiet", "--by-timer", *(["--vcenter", vcenter] if vcenter else [])]
    for half in Half:
        for zone, lines in groupby(timers.cron[half], key=lambda line: line.zone):
            if zone is not None:
                yield f"CRON_TZ={zone}"
            for line in lines:
                # cron ends a command at a bare %
                command = shlex.join(["gpuops", "rotate", half, *words]).replace("%", "\\%")
                yield f"{line.cron}  {command}"


class CronCallRecord(DocumentRecord, frozen=True):
    """One line of cron."""

    zone: Annotated[str | None, "the value of CRON_TZ; null = the hours are the machine's own"]
    when: Annotated[str, "the five fields of a line"]


class TimerCallsRecord(DocumentRecord, frozen=True):
    """The calls of one half."""

    systemd: Annotated[list[str], "values of OnCalendar"]
    cron: list[CronCallRecord]


@printed("rotate-timers", by="gpuops rotate timers")
class RotateTimersDocument(PrintedDocument, frozen=True):
    """When systemd and cron call the two halves of a policy."""

    policy: Annotated[str, "its name"]
    machine_zone: Annotated[str, "the zone of this machine's clock"]
    cron_tz: Annotated[bool, "whether the lines of cron are in zones, by CRON_TZ; false = in hours of machine_zone"]
    night: TimerCallsRecord
    day: TimerCallsRecord


def timers_document(timers: Timers) -> RotateTimersDocument:
    """Return the calls of both halves as a document."""
    night, day = (_calls(timers.systemd[half], timers.cron[half]) for half in (Half.NIGHT, Half.DAY))
    return RotateTimersDocument.from_attributes(timers, cron_tz=timers.has_cron_tz, night=night, day=day)


def _calls(systemd: Sequence[CallLine], cron: Sequence[CallLine]) -> TimerCallsRecord:
    return TimerCallsRecord([line.systemd for line in systemd], [CronCallRecord(line.zone, line.cron) for line in cron])
