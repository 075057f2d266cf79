"""`gpuops rotate watch`: ML VMs on spare capacity, at any hour, as a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.services import collect_garbage_often
from gpuops.console.spread import spread
from gpuops.model.time_text import format_second

if TYPE_CHECKING:
    from gpuops.plan.rotation.nights.watch_look import WatchReport


@spread
def watch(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look once, show what would be done if it had been calm; change nothing.")
    ] = False,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer GET /healthz there: 200 while it looks at vCenter, 503 when it does not.",
        ),
    ] = None,
) -> None:
    """Run ML VMs at any hour on GPUs that are free beyond the policy's reserve; stop them when desktops need these.

    A service: it goes on until it is stopped (templates/gpuops-watch.service). What it has started then runs on;
    `gpuops rotate day` ends that. The policy says `mode: spare-capacity`. Exit code 6 where another watch of this
    machine runs, or a night holds VMs that the policy means.

    \b
    Example:
      gpuops rotate watch --policy templates/spare-policy.yaml --dry-run --vcenter sim:lab
      gpuops rotate watch --policy spare.yaml --health 9464 --vcenter prod
    """
    from contextlib import ExitStack

    from gpuops.api import rotate_watch, rotate_watch_look
    from gpuops.console.opening import open_site, refuse_vcenter_of_runners
    from gpuops.console.running import policy_of_run
    from gpuops.execute.state.http_listener import health_address, serve_health
    from gpuops.report.nights.watch import look_document, look_text

    address = health_address(health) if health is not None else None
    rules = policy_of_run(policy, "rotate watch", common, looks_only=dry_run)
    if not dry_run:
        refuse_vcenter_of_runners(common)
    with open_site(common, guarded=True) as site, ExitStack() as stack:
        if not dry_run:
            site.say = output.note
            collect_garbage_often()
            alive = stack.enter_context(serve_health(address)).note_look if address is not None else None
            rotate_watch(rules, site, _tell, alive)
        look = rotate_watch_look(rules, site)
    output.show(look_text(look), look_document(look))


def _tell(report: WatchReport) -> None:
    """Print each look that did something or found too little, with --verbose each look."""
    from gpuops.clock import wall_clock
    from gpuops.report.layout import Text
    from gpuops.report.nights.watch import look_document, watch_lines

    if report.outcomes or report.look.gives.still_missing or output.manners().verbose:
        output.note(Text(format_second(wall_clock().astimezone()), "dim"))
        output.show(watch_lines(report), look_document(report))
