"""What `rotate timers` prints: the calls of the two halves for systemd, for cron, and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from gpuops.model.nights.runners import Half
from gpuops.plan.rotation.timers import CallLine, Timers
from gpuops.report.document import SCHEMA_VERSION, Document


def systemd_text(timers: Timers) -> str:
    """A drop-in for the timer of each half."""
    return "\n\n".join(_drop_in(half, timers.systemd[half]) for half in Half)


def _drop_in(half: Half, lines: Sequence[CallLine]) -> str:
    calendars = (f"OnCalendar={line.systemd}" for line in lines)
    head = f"# gpuops-{half}.timer, which calls `gpuops rotate {half} --by-timer`: systemctl edit gpuops-{half}.timer"
    return "\n".join(
        (head, "[Timer]", "# an empty value takes back the calls that the unit has", "OnCalendar=", *calendars)
    )


def cron_text(timers: Timers, policy_file: str, vcenter: str | None) -> str:
    """The lines of a crontab, with what they are in."""
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


def timers_document(timers: Timers) -> Document:
    """The calls of both halves, for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-timers",
        "policy": timers.policy,
        "machine_zone": timers.machine_zone,
        "cron_tz": timers.has_cron_tz,
        **{
            half.value: {
                "systemd": [line.systemd for line in timers.systemd[half]],
                "cron": [{"zone": line.zone, "when": line.cron} for line in timers.cron[half]],
            }
            for half in Half
        },
    }
