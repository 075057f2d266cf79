"""`gpuops defrag`: the moves that free the most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, RunOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.plan.moving.defrag import Defrag


@spread
def defrag(
    common: CommonOptions,
    request: Defrag,
    whole_gpus: Annotated[
        bool, typer.Option("--whole-gpus", help="Free GPUs that nothing runs on then; the default.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Carry the moves out, one after another; else they are only planned.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; nothing is moved.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --execute: do not ask first.")] = False,
    saved: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Ask a saved inventory, without a vCenter.")
    ] = None,
) -> None:
    """Plan the fewest vMotions that free the most whole GPUs, or slots of a profile, and with --execute make them.

    Each move is feasible once those before it are done. No VM is suspended; those that cannot move are named, with why.

    \b
    Examples:
      gpuops defrag --vcenter sim:scattered
      gpuops defrag --profile a40-24q --max-moves 2 --vcenter sim:scattered
      gpuops defrag --execute --yes --vcenter sim:scattered
    """
    if request.profile is not None and whole_gpus:
        raise UsageError("--profile and --whole-gpus exclude each other", hint="ask twice: for the one, for the other")

    from gpuops import api
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.console.running import carry_out
    from gpuops.report.vms.defrag import DefragDocument, defrag_text

    if execute:
        if saved is not None:
            raise UsageError(
                "--execute and --inventory exclude each other", hint="a saved inventory is only planned on"
            )
        carry_out(
            lambda site, apply, consent: api.defrag_execute(request, site, apply=apply, consent=consent),
            "defrag-execute",
            common,
            RunOptions(dry_run=dry_run, yes=yes),
            guarded=True,
        )
        return
    with open_site(common, saved=saved) as site:
        defragmentation = api.defrag(request, read_inventory(site, common, saved=saved))
    output.show(defrag_text(defragmentation), DefragDocument.made_of(defragmentation))
