"""`gpuops pool`: GPUs lent over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import completion, output
from gpuops.cli.commands import VerbTable
from gpuops.cli.options import CommonOptions, DryRun
from gpuops.cli.spread import reads_sites, spread
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.plan.pool.answers import PoolAnswer

pool = VerbTable("pool", "Lend shares of GPUs over the network, and keep the book of them.")

PoolName = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="The pool; default: the only one.")]
Client = Annotated[
    str, typer.Option("--client", metavar="VM", autocompletion=completion.vms, help="A VM without a GPU.")
]


def _time(option: str, text: str, *, may_be_zero: bool = False) -> timedelta:
    """Return the duration that was typed for this option. Raises UsageError with the option in its message."""
    from gpuops.config.pool_file import lease_time

    try:
        return lease_time(text, may_be_zero=may_be_zero)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def _consent(question: str, yes: bool) -> Callable[[PoolAnswer], None]:
    """Return a function that shows the plan and asks for confirmation; with `yes` it does nothing."""
    from gpuops.cli.running import confirm
    from gpuops.report.workloads.pool import pool_answer_text

    def consent(planned: PoolAnswer) -> None:
        if not yes:  # as applied: no line "dry run: nothing was changed"
            confirm(pool_answer_text(replace(planned, applied=True)), question)

    return consent


def _show_pool_answer(answer: PoolAnswer, kind: str) -> None:
    from gpuops.report.workloads.pool import pool_answer_document, pool_answer_text

    calm = output.manners().quiet and not (answer.changed or answer.warnings or answer.exit_code)
    output.show([] if calm else pool_answer_text(answer), pool_answer_document(answer, kind))
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


@pool.command("create")
@spread
def pool_create(
    common: CommonOptions,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The pool: templates/pool.yaml is one.")],
    dry_run: DryRun = False,
) -> None:
    """Make a pool, or change it to what its file says: servers, quotas, network, program.

    Servers are VMs with whole GPUs. One with leases leaves a pool only after `gpuops pool reclaim`.

    \b
    Examples:
      gpuops pool create --file templates/pool.yaml --dry-run --vcenter sim:lab
      gpuops pool create --file templates/pool.yaml --vcenter sim:lab
    """
    from gpuops import api
    from gpuops.cli.opening import open_site
    from gpuops.config.pool_file import load_pool

    wish = load_pool(file)
    with open_site(common) as site:
        answer = api.pool_create(wish, site, apply=not dry_run)
    _show_pool_answer(answer, "pool-create")


@pool.command("show")
@spread
@reads_sites
def pool_show(
    common: CommonOptions,
    pool: PoolName = None,
    ended: Annotated[
        int, typer.Option("--ended", min=0, max=10_000, metavar="N", help="Show so many ended leases too.")
    ] = 0,
) -> None:
    """Show pools: servers, the idle memory of their GPUs, and leases. Changes nothing.

    \b
    Examples:
      gpuops pool show
      gpuops pool show --pool lab --ended 20 --output json
    """
    from gpuops import api
    from gpuops.cli.opening import open_site
    from gpuops.report.workloads.pool import pools_document, pools_text

    with open_site(common) as site:
        pools = api.pool_show(pool, site, ended=ended)
    output.show(pools_text(pools), pools_document(pools))


@pool.command("lend")
@spread
def pool_lend(
    common: CommonOptions,
    client: Client,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Of each GPU, such as 8GiB.")],
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, such as 4h, 90m or 1d.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=64, metavar="N", help="Of so many different GPUs.")] = 1,
    pool: PoolName = None,
    dry_run: DryRun = False,
) -> None:
    """Lend a client shares of GPUs until a moment, or refuse where there is no room now.

    \b
    Examples:
      gpuops pool lend --client ml-07 --memory 8GiB --for 4h --dry-run
      gpuops pool lend --client ml-08 --memory 40GiB --gpus 2 --for 90m
    """
    from gpuops import api
    from gpuops.cli.opening import open_site
    from gpuops.model.workloads.workload import memory_mib
    from gpuops.plan.pool.members import ShareRequest

    request = ShareRequest(client, memory_mib(memory), _time("--for", lasts), gpus)
    with open_site(common) as site:
        answer = api.pool_lend(pool, request, site, apply=not dry_run)
    _show_pool_answer(answer, "pool-lend")


@pool.command("return")
@spread
def pool_return(common: CommonOptions, client: Client, pool: PoolName = None, dry_run: DryRun = False) -> None:
    """Give back what a client has, and cut it off.

    \b
    Examples:
      gpuops pool return --client ml-07 --dry-run
      gpuops pool return --client ml-07
    """
    from gpuops import api
    from gpuops.cli.opening import open_site

    with open_site(common) as site:
        answer = api.pool_return(pool, client, site, apply=not dry_run)
    _show_pool_answer(answer, "pool-return")


@pool.command("reclaim")
@spread
def pool_reclaim(
    common: CommonOptions,
    pool: PoolName = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="VM", help="It lends nothing more; its leases end.")
    ] = None,
    lease: Annotated[str | None, typer.Option("--lease", metavar="ID", help="This lease alone.")] = None,
    due: Annotated[
        bool, typer.Option("--due", help="Only what is due: for cron, each minute (gpuops help pool).")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="How long clients keep it, or 0. Default: `grace` of the file."),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="The server is dead: its leases break at once.")] = False,
    again: Annotated[bool, typer.Option("--again", help="The server lends again.")] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before clients lose something.")] = False,
) -> None:
    """Take back a server or a lease with a grace period, or do what is due: end leases, ask servers for their health.

    \b
    Examples:
      gpuops pool reclaim --due
      gpuops pool reclaim --server ml-03 --grace 30m --dry-run
      gpuops pool reclaim --server ml-03 --again
    """
    from gpuops import api
    from gpuops.cli.opening import open_site
    from gpuops.plan.pool.reclaim import Reclaim

    if [server is not None, lease is not None, due].count(True) != 1:
        raise UsageError("name one of --server, --lease and --due", hint="gpuops pool show lists servers and leases")
    if (dead or again) and (server is None or dead is again):
        raise UsageError("--dead and --again belong to a --server, one at a time", hint="add --server VM")
    if grace is not None and (due or dead or again):
        other = "--due" if due else "--dead" if dead else "--again"
        raise UsageError(f"--grace has no effect with {other}", hint=f"remove --grace or {other}")
    grace_time = None if grace is None else _time("--grace", grace, may_be_zero=True)
    request, consent = Reclaim(server, lease, grace_time, dead, again), _consent("clients lose what is above", yes)
    with open_site(common) as site:
        answer = api.pool_reclaim(pool, request, site, consent, apply=not dry_run)
    _show_pool_answer(answer, "pool-reclaim")


@pool.command("delete")
@spread
def pool_delete(
    common: CommonOptions,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="The pool.")],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the pool is deleted.")] = False,
) -> None:
    """Delete a pool without open leases, with its ended leases. Its servers stay as they are, without its mark.

    Run the same command again to continue after an interruption.

    \b
    Examples:
      gpuops pool delete --pool lab --dry-run
      gpuops pool delete --pool lab --yes
    """
    from gpuops import api
    from gpuops.cli.opening import open_site

    with open_site(common) as site:
        answer = api.pool_delete(pool, site, _consent("the pool above is deleted", yes), apply=not dry_run)
    _show_pool_answer(answer, "pool-delete")
