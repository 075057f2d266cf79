"""`gpuops rotate mark`: the mark of desktops' owners, and the opt-out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import completion
from gpuops.console.options import CommonOptions, PolicyFile, RunOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError


@spread
def mark(
    common: CommonOptions,
    run_options: RunOptions,
    policy: Annotated[Path, PolicyFile],
    opt_in: Annotated[bool, typer.Option("--opt-in", help="The mark by which owners agree (`owner`).")] = False,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help="The mark that keeps a desktop out of every night (`opt_out`).")
    ] = False,
    vm: Annotated[
        list[str] | None,
        typer.Option(metavar="VM", help="This desktop; may be repeated.", autocompletion=completion.vms),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The desktops of this pool of the policy.")] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The policy's desktops in this folder: desktops/cad.")
    ] = None,
    value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The attribute's value where the policy accepts any: true.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Clear the mark.")] = False,
) -> None:
    """Set or clear the custom attribute by which owners agree to nights, or keep a desktop out of them.

    A second run changes nothing. Another owner's value is neither overwritten nor cleared. A tag is set in vCenter.

    \b
    Examples:
      gpuops rotate mark --opt-in --pool office --dry-run --policy templates/policy.yaml --vcenter prod
      gpuops rotate mark --opt-out --vm vdi-07 --policy templates/policy.yaml --vcenter prod
      gpuops rotate mark --opt-out --vm vdi-07 --undo --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import run
    from gpuops.config.policy import load_policy
    from gpuops.console.running import carry_out
    from gpuops.plan.rotation.marks import RotateMark

    if opt_in is opt_out:
        raise UsageError("say exactly one of --opt-in and --opt-out", hint="gpuops help marks")
    request = RotateMark(load_policy(policy), opt_out, tuple(vm or ()), pool, folder, value, undo)
    carry_out(
        lambda site, apply, consent: run(request, site, apply=apply, consent=consent),
        "rotate-mark",
        common,
        run_options,
    )
