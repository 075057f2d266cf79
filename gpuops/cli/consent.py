"""Consent: what stops, moves or reboots something is asked about on a terminal, and needs --yes without one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpuops.cli import output
from gpuops.errors import Refused, UsageError
from gpuops.plan.core.outcome import Report

if TYPE_CHECKING:
    from rich.console import RenderableType


class Consent:
    """Called with a plan that is about to be done; returns when it may be, raises UsageError or Refused when not."""

    def __init__(self, *, yes: bool) -> None:
        self.yes = yes

    def __call__(self, report: Report) -> None:
        if not report.plan.disruptive or self.yes:
            return
        from gpuops.report.plan_text import plan_text

        confirm(plan_text(report.plan, report.before))


def confirm(shown: RenderableType, what: str = "the plan above stops, moves or reboots something") -> None:
    """Returns when somebody says yes to what is shown. Raises UsageError where nobody is, Refused for a no."""
    output.note(shown)
    if not sys.stdin.isatty():
        raise UsageError(
            f"{what}, and nobody is there to ask",
            hint="look at it with --dry-run, then add --yes",
        )
    # not typer.confirm: it writes a blank to stdout, where only the result belongs
    sys.stderr.write("Go ahead? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("not confirmed: nothing was changed")
