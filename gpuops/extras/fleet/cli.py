"""`gpuops runner`: nights and mornings of many vCenters, by several machines that share a PostgreSQL.

The text and the JSON document of `gpuops runner status` are made here too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.signals import collect_garbage_often
from gpuops.console.spread import spread
from gpuops.errors import Refused, TargetError, UsageError
from gpuops.model.nights.runners import Half, QueuedTurn, QueueStatus, TurnState
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Column, Shown, Text, table_of
from gpuops.report.text import optional_figure

if TYPE_CHECKING:
    from gpuops.config.vcenter.targets import Configuration
    from gpuops.execute.state.http_listener import Health
    from gpuops.extras.fleet.runner.configuration import ObeyedConfiguration
    from gpuops.extras.fleet.runner.due import Rotations
    from gpuops.extras.fleet.runner.service import OverdueAlarm


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
        Column("site", lambda row: row.turn.site),
        Column("policy", lambda row: row.turn.policy),
        Column("state", lambda row: row.state),
        Column("runner", lambda row: optional_figure(row.runner, unknown="")),
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


runner = VerbTable("runner", "Play nights and mornings of many vCenters, by several machines.")


@runner.callback()
def _group() -> None:
    """Play nights and mornings of many vCenters, by several machines that share a PostgreSQL."""


@runner.command("init")
@spread
def runner_init(
    common: CommonOptions,
    sql: Annotated[
        bool, typer.Option("--sql", help="Change nothing: print the SQL for an account that may make tables.")
    ] = False,
) -> None:
    """Make the tables of the queue in the database of [fleet], and bring all others there to this version.

    \b
    Examples:
      gpuops runner init
      gpuops runner init --sql
    """
    import asyncio
    from contextlib import closing

    from gpuops.execute.journal.database import upgrade
    from gpuops.execute.journal.stores import open_database
    from gpuops.execute.migrations import HEAD, Contents

    if sql:
        printed = _sql(common)
        lines = printed.rstrip("\n").expandtabs().split("\n")
        output.show(lines if printed.strip() else "-- nothing to do", RunnerInitDocument(sql=printed))
        return
    url = _url(common)
    created = asyncio.run(_create_tables(url))
    with closing(open_database(url)) as database:
        before = upgrade(database, Contents.RUNNERS)
    output.show(
        init_text(before, HEAD, has_made_queue=created), RunnerInitDocument(made=created, before=before, revision=HEAD)
    )


@runner.command("run")
@spread
def runner_run(
    common: CommonOptions,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer GET /healthz there: 200 while it goes on; and /readyz: 503 while PostgreSQL is away, too.",
        ),
    ] = None,
) -> None:
    """Play the turns of the policies that the configuration file lists for each target, until it is stopped.

    A service (templates/gpuops-runner.service). SIGTERM hands what it plays over to another runner.
    With --vcenter it plays the turns of that target alone.

    \b
    Examples:
      gpuops runner run --health 9464
      gpuops runner run --vcenter prod
    """
    import asyncio
    from contextlib import ExitStack
    from functools import partial
    from tempfile import TemporaryDirectory

    from gpuops.clock import wall_clock
    from gpuops.config.vcenter.targets import parsed_configuration
    from gpuops.execute.state.http_listener import health_address, serve_health
    from gpuops.execute.state.service_manager import BEGUN, tell_systemd
    from gpuops.execute.state.state_dir import default_state_dir
    from gpuops.extras.fleet.runner.configuration import ObeyedConfiguration
    from gpuops.extras.fleet.runner.leaving import LeavingTargets
    from gpuops.extras.fleet.runner.service import STALE_S, OverdueAlarm

    address = health_address(health) if health is not None else None
    file, text = _file_and_text()
    configured = parsed_configuration(text, file)
    url, state_dir = _database(common, configured), default_state_dir()
    leaving = LeavingTargets(state_dir / "leaving", _say, url)
    environment = {"GPUOPS_JOURNAL_URL": url}
    with ExitStack() as stack:
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="gpuops-runner-")), file.name)
        obeyed = ObeyedConfiguration(
            file, text, common.vcenter, partial(_database, common), url, copy, environment, _say,
            leaving,
        )  # fmt: skip
        rotations = obeyed.begin(wall_clock())
        alarm = OverdueAlarm(state_dir, url, lambda: parsed_configuration(obeyed.text, file), os.environ, _say)
        health_state = stack.enter_context(serve_health(address, STALE_S)) if address is not None else None
        collect_garbage_often()
        tell_systemd(BEGUN)
        asyncio.run(_run(url, rotations, obeyed, alarm, health_state))


@runner.command("status")
@spread
def runner_status(common: CommonOptions) -> None:
    """Show which runners live, and which of their commands run or wait. Changes nothing.

    \b
    Example:
      gpuops runner status
    """
    import asyncio

    from gpuops.clock import machine_time

    queue_status = asyncio.run(_status(_url(common)))
    output.show(runner_text(queue_status, machine_time()), RunnerStatusDocument.made_of(queue_status))


def ask_fleet(common: CommonOptions, policy: Path, *, yes: bool) -> None:
    """Ask the runners for a night of the policy now. `yes`: do not ask the admin first.

    Raises UsageError, QueueAway; Refused while no window of the policy is open: a runner would then play a return.
    """
    import asyncio

    from gpuops.clock import wall_clock
    from gpuops.config.policy import load_policy
    from gpuops.console.running import confirm
    from gpuops.extras.fleet.runner.configuration import rotations_of
    from gpuops.extras.fleet.runner.due import half_of, refuse_other_modes
    from gpuops.model.nights.runners import Half
    from gpuops.report.layout import Text

    rules = load_policy(policy)
    refuse_other_modes(rules)
    sites = rotations_of(_configuration(), common.vcenter, wall_clock())
    if len(sites) != 1:
        raise UsageError(
            f"--fleet asks for a night on one vCenter, and runners play {len(sites)} of them",
            hint=f"add --vcenter {' or '.join(sites)}",
        )
    ((site, played_rotations),) = sites.items()
    if rules.name not in played_rotations:
        raise UsageError(
            f"runners play no policy {rules.name} on {site}",
            hint=f"add its file to rotations of [targets.{site}] in the configuration file, or use one of these "
            f"policies: {', '.join(played_rotations)}",
        )
    played = played_rotations[rules.name]
    if rules.digest != played.policy.digest:
        raise UsageError(
            f"{policy} is not the policy {rules.name} that runners play on {site}: the files differ",
            hint=f"use --policy {played.file}",
        )
    if half_of(rules, wall_clock()) is not Half.NIGHT:
        raise Refused(
            f"no window of {rules.name} is open: a runner would play a return",
            hint="gpuops rotate plan shows the next night; runners begin it by themselves",
        )
    url = _url(common)
    if not yes:
        confirm(Text(f"{site}: a runner plays a night of {rules.name}"), "a night suspends desktops")
    is_new = asyncio.run(_ask_for_night(url, site, rules.name))
    text = f"{site}: rotate night of {rules.name} {'was asked for' if is_new else 'waits already'}"
    output.show(text, RunnerAskedDocument(site, rules.name, Half.NIGHT, is_new))


def _sql(common: CommonOptions) -> str:
    """Return the SQL that makes the missing tables; "" = no table is missing.

    Includes the tables of the queue if procrastinate is installed. Raises TargetError, UsageError, QueueAway.
    """
    from gpuops.execute.journal.database import statements
    from gpuops.execute.journal.stores import open_database
    from gpuops.extras.fleet.runner.configuration import database_of

    url = database_of(_configuration(), common.journal_url or os.environ.get("GPUOPS_JOURNAL_URL"))
    sql = statements(open_database(url))
    if find_spec("procrastinate") is not None:
        import asyncio

        sql += asyncio.run(_sql_of_queue(url))
    return sql


async def _sql_of_queue(url: str) -> str:
    from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        return await queue.sql_to_make()


async def _create_tables(url: str) -> bool:
    from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        return await queue.make()


async def _ask_for_night(url: str, site: str, policy: str) -> bool:
    from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue
    from gpuops.model.nights.runners import PolicyTurn

    async with ProcrastinateQueue(url).opened() as queue:
        await queue.require()
        return await queue.ask(PolicyTurn(site, policy))


async def _status(url: str) -> QueueStatus:
    from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        await queue.require()
        return await queue.status()


async def _run(
    url: str, rotations: Rotations, obeyed: ObeyedConfiguration, alarm: OverdueAlarm, health: Health | None
) -> None:
    """Run the service until a signal ends it. Raises UsageError if the database has no tables of the queue."""
    import asyncio
    import signal

    from gpuops.extras.fleet.runner.children import Children
    from gpuops.extras.fleet.runner.configuration import describe_rotations
    from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue
    from gpuops.extras.fleet.runner.queue_port import QueueAway
    from gpuops.extras.fleet.runner.service import Service

    async with ProcrastinateQueue(url).opened() as queue:
        children = Children(obeyed.environment, obeyed.configuration_of, _say)
        service = Service(queue, rotations, children, _say, configured=obeyed.read_anew)
        service.returned_all = obeyed.leaving.forget_target
        service.share, service.alarm = obeyed.share, alarm.look
        if health is not None:
            service.looked = lambda found: health.note_look(is_available=found)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, service.end)
        _say(describe_rotations(rotations))
        try:
            await queue.require()
        except QueueAway as away:  # the runner starts anyway: without the queue it still begins returns
            _say(away.message)
        await service.run()


def _say(line: str) -> None:
    """Write a line of the runner's log: names in it may come from the database, or from a process that it started."""

    output.note(line)


def _url(common: CommonOptions) -> str:
    """Return the database of the queue, for libpq. Raises UsageError, TargetError."""
    return _database(common, _configuration())


def _database(common: CommonOptions, configured: Configuration) -> str:
    from gpuops.distribution import install_extra
    from gpuops.extras.fleet.runner.configuration import database_of

    url = database_of(configured, common.journal_url or os.environ.get("GPUOPS_JOURNAL_URL"))
    if find_spec("procrastinate") is None:
        raise UsageError("runners need Procrastinate", hint=install_extra("fleet"))
    return url


def _configuration() -> Configuration:
    from gpuops.config.vcenter.targets import parsed_configuration

    file, text = _file_and_text()
    return parsed_configuration(text, file)


def _file_and_text() -> tuple[Path, str]:
    """Return the configuration file and its text, "" if it is missing. Raises TargetError."""
    from gpuops.config.user_paths import config_file
    from gpuops.files.file import is_missing, read_text

    file = config_file(os.environ)
    try:
        return file, read_text(file, error=TargetError)
    except TargetError as error:
        if is_missing(error):
            return file, ""
        raise
