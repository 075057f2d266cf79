"""`gpuops rotate adopt` and `clear-marker`: what an admin decides where a return cannot tell whose VM it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, DryRun, PolicyFile, RunOptions
from gpuops.console.spread import spread

if TYPE_CHECKING:
    from gpuops.plan.rotation.returns.foreign_nights import Adoption


@spread
def clear_marker(
    common: CommonOptions,
    run_options: RunOptions,
    vm: Annotated[list[str], typer.Option("--vm", metavar="VM", help="A VM that no night of this vCenter took.")],
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
    from gpuops.config.policy import load_policy
    from gpuops.console.running import carry_out, somebody_is_asked

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


@spread
def adopt(
    common: CommonOptions,
    from_vcenter: Annotated[
        str, typer.Option("--from", metavar="UUID", help="Instance uuid of the vCenter whose nights took the VMs.")
    ],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Take over VMs that nights of another vCenter took and that are in this vCenter now; rotate day returns them.

    A vCenter that was rebuilt has a new instance uuid and no markers. rotate day then names the VMs of its open nights
    and touches none, because the other vCenter may still exist. Both must be in one journal. Nothing is asked of
    vCenter; VMs that are not here stay with the other vCenter.

    \b
    Example:
      gpuops rotate adopt --from 3c5e0b0a-8f4e-4f43-9d67-0c8a5f1b2d11 --dry-run --vcenter prod
    """
    from gpuops.api import rotate_adopt
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_setup import adoption_document, adoption_text

    def ask(planned: Adoption) -> None:
        from gpuops.console.running import confirm

        if not yes:
            confirm(adoption_text(planned), "the above makes these VMs the nights of this vCenter")

    with open_site(common, guarded=True) as site:
        adopted = rotate_adopt(site, from_vcenter, apply=not dry_run, consent=ask)
    output.show(adoption_text(adopted), adoption_document(adopted))
