"""The output of `gpuops runner status` as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Self

from gpuops.model.nights.runners import Half, QueuedTurn, QueueStatus, TurnState
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Column, Shown, Text, table_of
from gpuops.report.text import optional_figure


def runner_text(status: QueueStatus, now: datetime) -> Shown:
    """Return a line for each runner with its last sign of life, and a table of turns."""
    return tuple(_lines(status, now))


def _lines(status: QueueStatus, now: datetime) -> Iterator[Shown]:
    if not any(runner.lives for runner in status.runners):
        yield Text("no runner lives: gpuops runner run starts one", "yellow")
    for runner in status.runners:
        silent_s = max(0, round((now - runner.alive).total_seconds()))
        if runner.lives:
            yield Text(f"runner {runner.number}: alive {silent_s} s ago")
        else:
            yield Text(f"runner {runner.number}: silent for {silent_s} s", "yellow")
    if not status.turns:
        yield Text("no turn runs or waits")
        return
    yield table_of(
        status.turns,
        Column("site", lambda turn: turn.turn.site),
        Column("policy", lambda turn: turn.turn.policy),
        Column("state", lambda turn: turn.state),
        Column("runner", lambda turn: optional_figure(turn.runner, unknown="")),
    )


class RunnerSeenRecord(DocumentRecord, frozen=True):
    """A runner, and its last sign of life by the database's clock."""

    number: int
    alive: Moment
    lives: Annotated[bool, "false = so long ago that its turns are offered again"]


class QueuedTurnRecord(DocumentRecord, frozen=True):
    """A turn of one policy of one vCenter."""

    site: Annotated[str, "name of the target"]
    policy: Annotated[str, "name of the policy"]
    state: TurnState
    runner: Annotated[int | None, "number of the runner that plays it"]
    since: Annotated[Moment | None, "when it was offered or taken"]

    @classmethod
    def made_of(cls, queued: QueuedTurn) -> Self:
        return cls.from_attributes(queued, queued.turn)


@printed("runner-status", by="gpuops runner status")
class RunnerStatusDocument(PrintedDocument, frozen=True):
    """The runners that live, and the turns that run or wait."""

    runners: list[RunnerSeenRecord]
    turns: list[QueuedTurnRecord]


def init_text(before: str | None, revision: str, *, has_made_queue: bool) -> str:
    """Return one line: whether the tables of the queue were made, and the revision of all others."""
    queue = f"the tables of the queue {'were made' if has_made_queue else 'are there'}"
    if before == revision:
        return f"{queue}; all others are of revision {revision}, as before"
    return f"{queue}; all others are of revision {revision} now, of {before or 'none'} before"


@printed("runner-init", by="gpuops runner init")
class RunnerInitDocument(PrintedDocument, frozen=True):
    """Which tables of the runners' database had to be made."""

    made: Annotated[bool, "those of the queue"] = False
    before: Annotated[str | None, "revision of all other tables before; null = there were none, or older ones"] = None
    revision: Annotated[str | None, "their revision now; null = nothing was changed (--sql)"] = None
    sql: Annotated[str | None, "with --sql, what makes the tables that are not there; empty = all are there"] = None


@printed("runner-asked", by="gpuops rotate night --fleet")
class RunnerAskedDocument(PrintedDocument, frozen=True):
    """A turn that was asked of the runners."""

    site: Annotated[str, "name of the target"]
    policy: Annotated[str, "name of the policy"]
    half: Annotated[Half, "what it would be now"]
    asked: Annotated[bool, "false where it waited already"]
