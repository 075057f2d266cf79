"""Read the timers and cron lines of gpuops on this machine, from where the Ansible role installs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from gpuops.clock import wall_clock
from gpuops.execute.site import Site
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.plan.rotation.installed_calls import (
    InstalledCalls,
    calls_of_crontab,
    calls_of_unit,
    misfits,
    of_policy_file,
)
from gpuops.plan.rotation.timers import Timers, render_timers

UNITS: Final = (Path("/etc/systemd/system"), Path("/run/systemd/system"))
CRON: Final = Path("/etc/cron.d")
_ZONEINFO: Final = "zoneinfo/"
"""The part of the path of a time zone file before the name of the zone."""
_IGNORED_FILE_NAME: Final = re.compile(r"^\.|~$|\.(rpmsave|rpmorig|rpmnew|dpkg-.*)$")
"""Names of files in /etc/cron.d that no cron reads (crond(8) of cronie, cron(8) of Debian)."""


def timers(policy: Policy, *, cron_tz: bool | None = None) -> Timers:
    """Return the calls that the policy needs on this machine.

    `cron_tz`: whether this machine's cron reads `CRON_TZ`; None = find out.
    """
    has_cron_tz = cron_reads_zones() if cron_tz is None else cron_tz
    return render_timers(policy, wall_clock(), machine_zone(), has_cron_tz=has_cron_tz)


def timer_misfits(policy: Policy | None, site: Site, file: Path | None = None) -> tuple[str, ...]:
    """Return one line for each mismatch between the calls installed on this machine and the windows of the policy.

    `file`: the policy's file; calls that name another file are ignored. Empty if they match, if nothing is installed or
    readable, or if the policy is None or has no windows.
    """
    if policy is None or not policy.windows:
        return ()
    calls = of_policy_file(
        installed_calls(), os.path.normpath(file.expanduser().absolute()) if file is not None else None
    )
    return misfits(policy, calls, site.clock())


def installed_calls() -> tuple[InstalledCalls, ...]:
    """Return all calls of `rotate night` and `rotate day` in systemd units and cron files."""
    zone = machine_zone()
    return (*_read_unit_calls(zone), *_read_cron_calls(zone))


def _read_unit_calls(zone: tzinfo) -> Iterator[InstalledCalls]:
    """Yield the calls of the timers of gpuops. A timer in /etc replaces one of the same name in /run, as in systemd."""
    for half in Half:
        for directory in UNITS:
            timer = directory / f"gpuops-{half}.timer"
            if timer.exists():
                yield from calls_of_unit(
                    half, str(timer), _read_unit(timer), _read_unit(timer.with_suffix(".service")), zone
                )
                break


def _read_unit(path: Path) -> str:
    """Return the text of a unit and its drop-ins."""
    parts = (path, *sorted(path.with_name(f"{path.name}.d").glob("*.conf")))
    return "\n".join(_read_text(part) for part in parts)


def _read_cron_calls(zone: tzinfo) -> Iterator[InstalledCalls]:
    files = [
        file
        for file in sorted(CRON.glob("*"))
        if not _IGNORED_FILE_NAME.search(file.name) and "rotate" in _read_text(file)
    ]
    has_cron_tz = bool(files) and cron_reads_zones()
    for file in files:
        yield from calls_of_crontab(str(file), _read_text(file), zone, has_cron_tz=has_cron_tz)


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cron_reads_zones() -> bool:
    """Return whether this machine's cron is cronie, which reads `CRON_TZ`.

    The crons of Debian and busybox do not (crontab(5)).
    """
    program = shutil.which("crond", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return False
    try:
        answer = subprocess.run(  # noqa: S603 - the system's own program, with a constant argument
            [program, "-V"], capture_output=True, encoding="utf-8", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "cronie" in answer.stdout + answer.stderr


def machine_zone() -> tzinfo:
    """Return the time zone of this machine, which systemd and cron use; UTC if it is unknown."""
    target = os.path.realpath("/etc/localtime")
    name = target.partition(_ZONEINFO)[2] if _ZONEINFO in target else _read_text(Path("/etc/timezone")).strip()
    try:
        return ZoneInfo(name) if name else UTC
    except (OSError, ValueError, KeyError):
        return UTC
