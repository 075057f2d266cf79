"""`gpuops idle`: whether desktops are used, by which source and which number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import completion, output
from gpuops.cli.options import CommonOptions, spread


@spread
def idle(
    common: CommonOptions,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge the desktops of this rotation policy, by its pools.")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="Only the desktops of this pool.")] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="VM", autocompletion=completion.vms, help="Of this VM what each source says: number, age, veto."
        ),
    ] = None,
) -> None:
    """Say whether each desktop is idle, busy or unknown, and which source decides. Changes nothing.

    A night takes only what is idle here, and asks again just before. Without a policy no VM is called idle.

    \b
    Examples:
      gpuops idle --policy templates/policy.yaml --vcenter sim:vdi
      gpuops idle --policy templates/policy.yaml --explain vdi-091 --vcenter sim:vdi
    """
    from gpuops import api
    from gpuops.cli.opening import open_site, read_inventory
    from gpuops.config.policy import load_policy
    from gpuops.report.idle import idle_document, idle_text

    night = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        inventory, judged = api.idle(read_inventory(site, common), site, night, pool=pool, vm=explain)
    named = night.name if night is not None else None
    output.show(idle_text(judged, inventory, explain=explain is not None), idle_document(judged, inventory, named))
