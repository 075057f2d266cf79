"""Running: what every command that carries out a plan does: open, run, ask, report, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuops.cli import output
from gpuops.cli.options import Acting, Common

if TYPE_CHECKING:
    from gpuops.api import Consent, Site
    from gpuops.errors import PolicyError
    from gpuops.execute.patience import Patience
    from gpuops.model.rotation import Policy
    from gpuops.plan.core.outcome import Report

Corridor = Callable[["Site", bool, "Consent"], "Report"]
"""The function of the API to run: site, whether to apply, whom to ask."""


def carry_out(
    corridor: Corridor,
    kind: str,
    common: Common,
    acting: Acting,
    *,
    saved: Path | None = None,
    guarded: bool = False,
    patience: Patience | None = None,
) -> None:
    """Runs it and prints the report; ends with its exit code. `kind` names the JSON document. `patience`: how it waits
    for a vCenter that is away."""
    from gpuops.cli.consent import Consent
    from gpuops.cli.opening import open_site, remember
    from gpuops.cli.progress import Progress

    asked = Consent(yes=acting.yes)

    def consent(report: Report) -> None:
        if progress.report is None:  # asked once, however often vCenter goes away in between
            asked(report)
        progress.begin(report)

    waits = patience if not acting.dry_run else None
    with open_site(common, saved=saved, guarded=guarded, patience=waits) as site, Progress() as progress:
        site.progress = progress
        report = corridor(site, not acting.dry_run and saved is None, consent)
    if saved is None:
        remember(common, report.before)
    _show(report, kind, explain=acting.explain, saved=saved)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def patience_under(policy: Policy | PolicyError | None) -> Patience:
    """How a return waits for a vCenter that is away: until its desktops are due and an hour more, saying so."""
    from rich.text import Text

    from gpuops.clock import pause, wall_clock
    from gpuops.execute.patience import Patience
    from gpuops.model.rotation import Policy
    from gpuops.report.text import visible

    said = policy if isinstance(policy, Policy) else None
    return Patience(said, wall_clock, pause, lambda line: output.note(Text(visible(line), "yellow")))


def _show(report: Report, kind: str, *, explain: bool, saved: Path | None) -> None:
    from rich.console import Group
    from rich.text import Text

    from gpuops.report.plan_json import report_document
    from gpuops.report.plan_text import report_text

    text = report_text(report, explain=explain)
    if saved is not None:
        text = Group(text, Text(f"planned on the saved inventory {saved}: nothing is changed", "dim"))
    output.show(text, report_document(report, kind))
