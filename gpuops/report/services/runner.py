"""What `gpuops runner status` prints, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gpuops.model.nights.runners import PolicyTurn, QueueStatus
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import visible


def runner_text(status: QueueStatus, now: datetime) -> Shown:
    """A line for each runner and its sign of life, and a table of turns."""
    return tuple(_lines(status, now))


def _lines(status: QueueStatus, now: datetime) -> Iterator[Shown]:
    if not any(each.lives for each in status.runners):
        yield Text("no runner lives: gpuops runner run starts one", "yellow")
    for each in status.runners:
        silent_s = max(0, round((now - each.alive).total_seconds()))
        if each.lives:
            yield Text(f"runner {each.number}: alive {silent_s} s ago")
        else:
            yield Text(f"runner {each.number}: silent for {silent_s} s", "yellow")
    if not status.turns:
        yield Text("no turn runs or waits")
        return
    table = TextTable("site", "policy", "state", "runner")
    for turn in status.turns:
        runner = "" if turn.runner is None else str(turn.runner)
        table.add_row(visible(turn.turn.site), visible(turn.turn.policy), turn.state, runner)
    yield table


def runner_document(status: QueueStatus) -> Document:
    """The same; moments are those of the database's clock."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "runner-status",
        "runners": [
            {"number": each.number, "alive": each.alive.isoformat(), "lives": each.lives} for each in status.runners
        ],
        "turns": [
            {
                "site": each.turn.site,
                "policy": each.turn.policy,
                "state": each.state,
                "runner": each.runner,
                "since": each.since.isoformat() if each.since is not None else None,
            }
            for each in status.turns
        ],
    }


def init_text(before: str | None, revision: str, *, made: bool) -> str:
    """The same for people."""
    queue = f"the tables of the queue {'were made' if made else 'are there'}"
    if before == revision:
        return f"{queue}; all others are of revision {revision}, as before"
    return f"{queue}; all others are of revision {revision} now, of {before or 'none'} before"


def init_document(
    *, made: bool = False, before: str | None = None, revision: str | None = None, sql: str | None = None
) -> Document:
    """Whether the tables of the queue had to be made, and from which revision all others were brought to which one.

    `before` None = there were none, or tables of a gpuops without revisions. `revision` None = nothing was changed, and
    `sql` is what would; else `sql` is None.
    """
    told = {"made": made, "before": before, "revision": revision, "sql": sql}
    return {"schema_version": SCHEMA_VERSION, "kind": "runner-init", **told}


def asked_document(turn: PolicyTurn, half: str, *, asked: bool) -> Document:
    """A turn that was asked for. `asked` False = it waited already."""
    kind = {"schema_version": SCHEMA_VERSION, "kind": "runner-asked"}
    return {**kind, "site": turn.site, "policy": turn.policy, "half": half, "asked": asked}
