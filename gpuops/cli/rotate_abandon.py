"""`gpuops rotate abandon`: a VM of a night that can never come back, given up by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.options import Common, DryRun, PolicyFile, spread


@spread
def abandon(
    common: Common,
    vm: Annotated[str, typer.Option("--vm", metavar="NAME", help="The VM of a night that cannot be brought back.")],
    policy: Annotated[Path | None, PolicyFile] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Give up one VM that a night holds: no morning waits for it or names it as missing any more.

    Nothing is asked of vCenter: the VM stays as it is, its marker too. rotate restore --vm brings it back after all,
    where that can be done. doctor and status name it until it is back.

    A VM that this machine's journal does not know is found by its marker: under the attribute that --policy names, or
    the last night's policy.

    \b
    Example:
      gpuops rotate abandon --vm vdi-07 --yes --vcenter prod
    """
    from gpuops.api import rotate_abandon
    from gpuops.cli.change import agreeing, show_abandoned
    from gpuops.cli.opening import open_site
    from gpuops.config.policy import load_policy

    said = load_policy(policy) if policy is not None else None
    with open_site(common, guarded=True) as site:
        show_abandoned(rotate_abandon(site, vm, said, apply=not dry_run, consent=agreeing(yes=yes)))
