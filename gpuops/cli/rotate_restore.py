"""`gpuops rotate restore`: the way back at any hour, whole or in part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.options import Acting, Common, PolicyFile, spread


@spread
def restore(
    common: Common,
    acting: Acting,
    vm: Annotated[
        list[str] | None, typer.Option("--vm", metavar="NAME", help="Only this VM of a night; may be given repeatedly.")
    ] = None,
    from_markers: Annotated[
        bool,
        typer.Option(
            "--from-markers", help="Go by vCenter's markers alone, by no journal; needs the night's --policy."
        ),
    ] = False,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Bring back now, in an emergency, what the nights took: all of it, or these VMs alone. Safe at any time.

    With --vm an ML VM that is not named runs on: a desktop that finds no room is named with who holds the GPUs.
    On another machine than the night's, --from-markers needs no journal, but the policy of that night.

    \b
    Example:
      gpuops rotate restore --vm vdi-07 --vcenter prod
      gpuops rotate restore --from-markers --policy templates/policy.yaml --yes --vcenter prod
    """
    from gpuops.api import rotate_restore
    from gpuops.cli.running import carry_out, patience_under
    from gpuops.config.policy import said_policy

    wanted = said_policy(policy)
    vms = tuple(vm or ())
    carry_out(
        lambda site, apply, consent: rotate_restore(
            wanted, site, vms, from_markers=from_markers, apply=apply, consent=consent
        ),
        "rotate-restore",
        common,
        acting,
        guarded=True,
        patience=patience_under(wanted),
    )
