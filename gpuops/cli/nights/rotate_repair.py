"""`gpuops rotate clear-marker`: what an admin decides where a return cannot tell whose VM it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.options import CommonOptions, PolicyFile, RunOptions
from gpuops.cli.spread import spread


@spread
def clear_marker(
    common: CommonOptions,
    run_options: RunOptions,
    vm: Annotated[list[str], typer.Option("--vm", metavar="NAME", help="A VM that no night of this vCenter took.")],
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Clear the rotation marker of a VM and do nothing else to it: of a copy, or where the marker cannot be read.

    A copy of a VM that a night took carries the night's marker too. Afterwards no return touches or names it. Refused
    for a VM that an open night of the journal holds: rotate day brings that back and clears its marker.
    Without --policy it goes by the marker of the last night's policy.

    \b
    Example:
      gpuops rotate clear-marker --vm vdi-07-copy --dry-run --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import rotate_clear_marker
    from gpuops.cli.running import carry_out, somebody_is_asked
    from gpuops.config.policy import load_policy

    night_policy = load_policy(policy) if policy is not None else None
    carry_out(
        lambda site, apply, consent: rotate_clear_marker(
            night_policy, site, tuple(vm), apply=apply, consent=consent, asks=somebody_is_asked(run_options)
        ),
        "rotate-clear-marker",
        common,
        run_options,
        guarded=True,
    )
