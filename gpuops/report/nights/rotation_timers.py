"""Text and document of `rotate timers`: the calls of both halves for systemd and for cron."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

from gpuops.model.nights.runners import Half
from gpuops.plan.rotation.timers import CallLine, Timers
from gpuops.report.document import DocumentRecord, PrintedDocument, printed


def systemd_text(timers: Timers) -> str:
    """Return a drop-in for the timer of each half."""
    return "\n\n".join(_drop_in(half, timers.systemd[half]) for half in Half)


def _drop_in(half: Half, lines: Sequence[CallLine]) -> str:
    calendars = (f"OnCalendar={line.systemd}" for line in lines)
    head = f"# gpuops-{half}.timer, which calls `gpuops rotate {half} --by-timer`: systemctl edit gpuops-{half}.timer"
    return "\n".join(
        (head, "[Timer]", "# an empty value takes back the calls that the unit has", "OnCalendar=", *calendars)
    )


def cron_text(timers: Timers, policy_file: str, vcenter: str | None) -> str:
    """Return the lines of a crontab, with comments about their time zone."""
    return "\n".join(_crontab(timers, policy_file, vcenter))


def _crontab(timers: Timers, policy_file: str, vcenter: str | None) -> Iterator[str]:
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
