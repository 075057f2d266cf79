"""`gpuops pool`: lends shares of GPUs over the network to VMs without a GPU, and takes them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, DryRun
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError
from gpuops.extras.lending.lease_book import LeaseWish, PoolAnswer, lease_time
from gpuops.extras.lending.pool_commands import create_pool, lend_gpus, read_pools, reclaim_gpus, return_lease
from gpuops.extras.lending.pool_file import load_pool
from gpuops.extras.lending.pool_members import Reclaim
from gpuops.extras.lending.view import PoolShowDocument, pool_answer_text, pools_text
from gpuops.model.workloads.workload import memory_mib
from gpuops.report.document import DOCUMENTS

if TYPE_CHECKING:
    from gpuops.api import Site

pool = VerbTable("pool", "Lend shares of GPUs over the network, and take them back.")

PoolName = Annotated[str | None, typer.Argument(metavar="[POOL]", help="The name of the pool; default: the only pool.")]
Client = Annotated[
    str,
    typer.Option(
        "--client", metavar="VM", autocompletion=completion.vms, help="The VM without a GPU that uses the shares."
    ),
]


def _answer_pool_command(common: CommonOptions, kind: str, command: Callable[[Site], PoolAnswer]) -> None:
    """Run the command, show its answer, and exit with its code. `kind`: the kind of its document."""
    from gpuops.console.opening import open_site

    with open_site(common) as site:
        answer = command(site)
    is_quiet = output.manners().quiet and not (answer.changed or answer.warnings or answer.exit_code)
    output.show([] if is_quiet else pool_answer_text(answer), DOCUMENTS[kind].made_of(answer))
    output.leave(answer.exit_code)


@pool.command("create")
@spread
def pool_create(
    common: CommonOptions,
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The file of the pool, such as templates/pool.yaml.")
    ],
    dry_run: DryRun = False,
) -> None:
    """Make the pool that a file describes, or change it: servers, quotas, network, program.

    Servers are VMs with whole GPUs. A server with leases leaves a pool only after `gpuops pool reclaim`. A pool whose
    file lists no servers is deleted.

    \b
    Examples:
      gpuops pool create --file templates/pool.yaml --dry-run --vcenter sim:lab
      gpuops pool create --file templates/pool.yaml --vcenter sim:lab
    """
    pool = load_pool(file)
    _answer_pool_command(common, "pool-create", lambda site: create_pool(pool, site, apply=not dry_run))


@pool.command("show")
@spread
@reads_sites
def pool_show(common: CommonOptions, pool: PoolName = None) -> None:
    """Show pools: servers, the idle memory of their GPUs, and leases. Changes nothing.

    \b
    Examples:
      gpuops pool show
      gpuops pool show lab --output json
    """
    from gpuops.console.opening import open_site

    with open_site(common) as site:
        pools = read_pools(pool, site)
    output.show(pools_text(pools), PoolShowDocument.from_attributes(pools=pools))


@pool.command("lend")
@spread
def pool_lend(
    common: CommonOptions,
    client: Client,
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of each share, such as 8GiB.")],
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="Duration of the lease, such as 4h, 90m or 1d.")],
    gpus: Annotated[
        int, typer.Option("--gpus", min=1, max=64, metavar="N", help="Lend a share of each of N different GPUs.")
    ] = 1,
    pool: PoolName = None,
    dry_run: DryRun = False,
) -> None:
    """Lend a client shares of GPUs for some time. Refuses if there is not enough idle GPU memory now.

    \b
    Examples:
      gpuops pool lend --client ml-07 --gpu-memory 8GiB --for 4h --dry-run
      gpuops pool lend --client ml-08 --gpu-memory 40GiB --gpus 2 --for 90m
    """
    wish = LeaseWish(client, "", memory_mib(gpu_memory), lease_time(lasts, "--for"), gpus)
    _answer_pool_command(common, "pool-lend", lambda site: lend_gpus(pool, wish, site, apply=not dry_run))


@pool.command("return")
@spread
def pool_return(common: CommonOptions, client: Client, pool: PoolName = None, dry_run: DryRun = False) -> None:
    """Return the shares of a client, and end its access to them.

    \b
    Examples:
      gpuops pool return --client ml-07 --dry-run
      gpuops pool return --client ml-07
    """
    _answer_pool_command(common, "pool-return", lambda site: return_lease(pool, client, site, apply=not dry_run))


@pool.command("reclaim")
@spread
def pool_reclaim(
    common: CommonOptions,
    pool: PoolName = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="VM", help="Take back this server: it lends nothing new, and its leases end."),
    ] = None,
    due: Annotated[
        bool, typer.Option("--due", help="Do only what is due: for cron, each minute (gpuops help pool).")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="How long clients keep their shares; 0 = not at all. Default: `grace` of the file.",
        ),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Report the server dead: its leases end at once.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Let the server lend again.")] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before clients lose shares.")] = False,
) -> None:
    """Take back a server after a grace period, or do what is due: end leases, check the health of servers.

    \b
    Examples:
      gpuops pool reclaim --due
      gpuops pool reclaim --server ml-03 --grace 30m --dry-run
      gpuops pool reclaim --server ml-03 --again
    """
    from gpuops.console.running import confirm

    if (server is not None) is due:
        raise UsageError("set either --server VM or --due", hint="gpuops pool show lists the servers of pools")
    options = [name for name, is_typed in (("--grace", grace), ("--dead", dead), ("--again", again)) if is_typed]
    if len(options) > (0 if due else 1):
        rule = "cannot be used with --due" if due else "exclude each other"
        raise UsageError(f"{' and '.join(options)} {rule}", hint=f"remove {options[-1]}")
    grace_time = None if grace is None else lease_time(grace, "--grace", may_be_zero=True)
    request = Reclaim(server, grace_time, dead, again)

    def consent(planned: PoolAnswer) -> None:
        if not yes:  # shown as applied, because the text of a plan ends with "dry run: nothing was changed"
            confirm(pool_answer_text(replace(planned, applied=True)), "clients lose the shares listed above")

    _answer_pool_command(
        common, "pool-reclaim", lambda site: reclaim_gpus(pool, request, site, consent, apply=not dry_run)
    )
