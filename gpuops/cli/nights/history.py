"""`gpuops history`: past nights and changes in the journal, as table, JSON and CSV; reads no vCenter."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.spread import also_csv, reads_sites, spread
from gpuops.model.nights.history import EventKind
from gpuops.model.time_text import format_minute

history = VerbTable("history", "")


@history.callback(invoke_without_command=True, no_args_is_help=False)
@spread
@also_csv
@reads_sites
def listing(
    context: typer.Context,
    common: CommonOptions,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="What began since then: 30d, 12w or a date in UTC.")
    ] = None,
    kind: Annotated[EventKind | None, typer.Option(help="Nights alone, or changes alone.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N, the newest.")] = None,
) -> None:
    """Show past nights and changes: what was taken and is back, GPU-hours, incidents, who ran it. Asks no vCenter.

    \b
    Example:
      gpuops history --since 30d
      gpuops history --kind night --since 2026-07-01 --output csv > nights.csv
      gpuops history show 2026-11-20
    """
    from gpuops import clock
    from gpuops.api import history as past_events
    from gpuops.config.date_text import parse_since
    from gpuops.console.opening import journal_of, vcenter_of_site
    from gpuops.report.nights.history import history_text
    from gpuops.report.nights.history_rows import HistoryDocument, history_csv

    if context.invoked_subcommand is not None:
        context.obj = common
        return
    began = parse_since("--since", since, clock.wall_clock()) if since is not None else None
    state_dir, url = journal_of(common)
    only = vcenter_of_site(common)
    events = past_events(state_dir, url, since=began, kind=kind, limit=limit, vcenter=only)
    filter_text = f" of kind {kind.value}" if kind is not None else ""
    filter_text += f" since {format_minute(began)} UTC" if began is not None else ""
    output.show(history_text(events, filter_text), HistoryDocument.made_of(events), csv=lambda: history_csv(events))


@history.command()
@spread
@also_csv
def show(
    common: CommonOptions,
    night: Annotated[str, typer.Argument(metavar="NIGHT", help="The night, as `gpuops history` names it.")],
) -> None:
    """Show one night in full: each desktop and ML VM with its times, what went wrong and why, who ran it.

    \b
    Example:
      gpuops history show 2026-11-20
    """
    from gpuops.api import past_night
    from gpuops.console.opening import journal_of
    from gpuops.report.nights.history import night_text
    from gpuops.report.nights.history_rows import HistoryNightDocument, night_csv

    state_dir, url = journal_of(common)
    past = past_night(state_dir, night, url)
    output.show(night_text(past), HistoryNightDocument.made_of(past), csv=lambda: night_csv(past))
