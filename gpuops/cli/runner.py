"""`gpuops runner`: nights and mornings of many vCenters, by several machines that share a PostgreSQL."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import output
from gpuops.cli.commands import VerbTable
from gpuops.cli.options import CommonOptions, spread
from gpuops.errors import Refused, TargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuops.config.targets import Configuration
    from gpuops.execute.state.health import Health
    from gpuops.model.runners import QueueStatus
    from gpuops.runner.site_policy import SitePolicy

runner = VerbTable("runner", "Play nights and mornings of many vCenters, by several machines.")

_EXAMPLE = 'for example: [fleet] and below it url = "postgresql://gpuops@db.example.com/gpuops" (gpuops help runner)'


@runner.callback()
def _group() -> None:
    """Play nights and mornings of many vCenters, by several machines that share a PostgreSQL."""


@runner.command("init")
@spread
def runner_init(common: CommonOptions) -> None:
    """Make the tables of the queue in the database of [fleet], where they are not there.

    \b
    Example:
      gpuops runner init
    """
    import asyncio

    from gpuops.report.runner import init_document

    made = asyncio.run(_made(_url(common)))
    text = "the tables of the queue were made" if made else "the tables of the queue are there"
    output.show(text, init_document(made=made))


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

    from gpuops.config.sites import refuse_one_login
    from gpuops.execute.state.health import health_address, served
    from gpuops.execute.state.service_manager import BEGUN, tell_systemd
    from gpuops.runner.service import STALE_S

    address = health_address(health) if health is not None else None
    url, rotations = _url(common), _rotations(common)
    refuse_one_login(rotations, os.environ)
    with ExitStack() as stack:
        told = stack.enter_context(served(address, STALE_S)) if address is not None else None
        tell_systemd(BEGUN)
        asyncio.run(_run(url, rotations, told))


@runner.command("status")
@spread
def runner_status(common: CommonOptions) -> None:
    """Show which runners live, and which turns run or wait. Changes nothing.

    \b
    Example:
      gpuops runner status
    """
    import asyncio

    from gpuops.clock import machine_time
    from gpuops.report.runner import runner_document, runner_text

    found = asyncio.run(_status(_url(common)))
    output.show(runner_text(found, machine_time()), runner_document(found))


def ask_fleet(common: CommonOptions, policy: Path, *, yes: bool) -> None:
    """Asks for a night of the policy now, whoever of the runners plays it. `yes`: nobody is asked whether it may.

    Raises UsageError, QueueAway; Refused outside the policy's windows, for what a runner plays then is a return.
    """
    import asyncio

    from gpuops.cli.running import confirm
    from gpuops.clock import wall_clock
    from gpuops.config.policy import load_policy
    from gpuops.model.runners import Half, PolicyTurn
    from gpuops.report.layout import Text
    from gpuops.report.runner import asked_document
    from gpuops.runner.due import half_of, refuse_other_modes

    wanted = load_policy(policy)
    refuse_other_modes(wanted)
    sites = _rotations(common)
    if len(sites) != 1:
        raise UsageError("--fleet asks for one vCenter's turn", hint=f"say which: --vcenter {' or '.join(sites)}")
    ((site, known),) = sites.items()
    if wanted.name not in known:
        raise UsageError(
            f"policy {wanted.name} is none of those that runners play on {site}",
            hint=f"rotations of [targets.{site}] in the configuration file: {', '.join(known)}",
        )
    played = known[wanted.name]
    if wanted.digest != played.policy.digest:
        raise UsageError(
            f"{policy} is not the policy {wanted.name} that runners play on {site}: the files differ",
            hint=f"say --policy {played.file}",
        )
    if half_of(wanted, wall_clock()) is not Half.NIGHT:
        raise Refused(
            f"no window of {wanted.name} is open: a runner would play a return",
            hint="gpuops rotate plan shows the next night; runners begin it by themselves",
        )
    url = _url(common)
    if not yes:
        confirm(Text(f"{site}: a runner plays a night of {wanted.name}"), "a night suspends desktops")
    asked = asyncio.run(_asked(url, site, wanted.name))
    text = f"{site}: rotate night of {wanted.name} {'was asked for' if asked else 'waits already'}"
    output.show(text, asked_document(PolicyTurn(site, wanted.name), Half.NIGHT, asked=asked))


async def _made(url: str) -> bool:
    from gpuops.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        return await queue.make()


async def _asked(url: str, site: str, policy: str) -> bool:
    from gpuops.model.runners import PolicyTurn
    from gpuops.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        await queue.require()
        return await queue.ask(PolicyTurn(site, policy))


async def _status(url: str) -> QueueStatus:
    from gpuops.runner.procrastinate_queue import ProcrastinateQueue

    async with ProcrastinateQueue(url).opened() as queue:
        await queue.require()
        return await queue.status()


async def _run(url: str, rotations: Mapping[str, Mapping[str, SitePolicy]], health: Health | None) -> None:
    import asyncio
    import signal

    from gpuops.runner.children import Children
    from gpuops.runner.job_queue import QueueAway
    from gpuops.runner.procrastinate_queue import ProcrastinateQueue
    from gpuops.runner.service import Service

    async with ProcrastinateQueue(url).opened() as queue:
        service = Service(queue, rotations, Children({"GPUOPS_JOURNAL_URL": url}), output.note)
        if health is not None:
            service.looked = lambda found: health.looked(found=found)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, service.end)
        names = ", ".join(f"{site}: {', '.join(policies)}" for site, policies in rotations.items())
        output.note(f"plays {names}")
        try:
            await queue.require()
        except QueueAway as away:  # returns are due all the same
            output.note(away.message)
        await service.run()


def _url(common: CommonOptions) -> str:
    """The database of the queue, for libpq. Raises UsageError, TargetError."""
    from gpuops.config.journal_url import parsed
    from gpuops.distribution import install_extra

    configured = _configured()
    fleet = configured.fleet
    text = common.journal_url or os.environ.get("GPUOPS_JOURNAL_URL") or (fleet.url if fleet is not None else None)
    if text is None:
        raise TargetError("no database of runners is configured", hint=_EXAMPLE)
    for name, target in configured.targets.items():
        if target.rotations and target.journal_url not in (None, text):
            raise UsageError(
                f"targets.{name}.journal_url is another database than that of the runners, which keeps its journal",
                hint=f"leave journal_url out of [targets.{name}], and say [fleet].url in the file (gpuops help runner)",
            )
    if find_spec("procrastinate") is None:
        raise UsageError("runners need Procrastinate", hint=install_extra("fleet"))
    url = parsed(text).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def _rotations(common: CommonOptions) -> dict[str, dict[str, SitePolicy]]:
    """The policies of each target that has some. Raises UsageError, TargetError, PolicyError."""
    from gpuops.clock import wall_clock
    from gpuops.config.policy import load_policy
    from gpuops.runner.due import refuse_clash, refuse_other_modes
    from gpuops.runner.site_policy import SitePolicy

    found: dict[str, dict[str, SitePolicy]] = {}
    for site, target in _configured().targets.items():
        if common.vcenter in (None, site) and target.rotations:
            for file in target.rotations:
                policy = load_policy(file)
                refuse_other_modes(policy)
                if policy.name in found.setdefault(site, {}):
                    raise UsageError(f"two policies of {site} are called {policy.name}", hint=f"one of them is {file}")
                found[site][policy.name] = SitePolicy(policy, file)
            refuse_clash([each.policy for each in found[site].values()], wall_clock())
    if not found:
        raise TargetError(
            f"no policy is configured for {common.vcenter or 'any target'}",
            hint='below [targets.NAME]: rotations = ["/etc/gpuops/vdi.yaml"] (gpuops help runner)',
        )
    return found


def _configured() -> Configuration:
    from gpuops.config.file import config_file, is_missing, read_text
    from gpuops.config.targets import Configuration, parsed_configuration

    path = config_file(os.environ)
    try:
        return parsed_configuration(read_text(path, error=TargetError), path)
    except TargetError as error:
        if is_missing(error):
            return Configuration()
        raise
