"""`gpuops rotate timers`: when systemd or cron calls the two halves, by the windows of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.spread import spread
from gpuops.errors import UsageError


@spread
def timers(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    cron: Annotated[bool, typer.Option("--cron", help="Print lines for a crontab.")] = False,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print drop-ins for timers of systemd; the default.")
    ] = False,
    cron_tz: Annotated[
        bool | None,
        typer.Option(
            "--cron-tz/--no-cron-tz",
            show_default="as this machine's cron",
            help="Whether that cron reads CRON_TZ, as cronie does; otherwise in this machine's own hours.",
        ),
    ] = None,
) -> None:
    """Print when systemd or cron has to call the night and the return of a policy.

    Asks no vCenter, and installs nothing. `doctor --policy`, `rotate plan` and `rotate status` warn where the installed
    calls do not meet the windows.

    \b
    Examples:
      gpuops rotate timers --policy templates/policy.yaml
      gpuops rotate timers --policy templates/policy.yaml --cron --no-cron-tz
    """
    from gpuops.api import rotate_timers
    from gpuops.config.policy import load_policy
    from gpuops.report.nights.rotation_setup import cron_text, systemd_text, timers_document

    if cron and systemd:
        raise UsageError("--cron and --systemd exclude each other", hint="leave one of them out")
    calls = rotate_timers(load_policy(policy), cron_tz=cron_tz)
    text = cron_text(calls, str(policy.expanduser().absolute()), common.vcenter) if cron else systemd_text(calls)
    output.show(text.split("\n"), timers_document(calls))
