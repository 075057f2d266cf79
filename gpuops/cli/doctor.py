"""`gpuops doctor`: what stands in the way of the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.entering import Entering
from gpuops.cli.options import Common, spread
from gpuops.plan.core.scope import Scope


@spread
def doctor(
    common: Common,
    entering: Entering,
    scope: Scope,
    roles: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare what this login may do with these roles: templates/roles/*.yaml."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 for anything worse than a note.")] = False,
) -> None:
    """Say what stands in the way on hosts, GPUs and VMs, each with its reason and what to do. Changes nothing.

    With --host-shell ssh the hosts' own nvidia-smi is asked too, for MIG mode and ECC.

    \b
    Examples:
      gpuops doctor --vcenter sim:lab
      gpuops doctor --strict --cluster lab-cluster --vcenter sim:lab
      gpuops doctor --roles templates/roles/night.yaml --vcenter sim:lab
    """
    from gpuops.api import doctor as examine
    from gpuops.cli.opening import open_site, remember
    from gpuops.config.role_file import load_roles
    from gpuops.report.doctor import doctor_document, doctor_text

    wishes = load_roles(roles) if roles is not None else ()
    with open_site(common) as site:
        site.shell = entering.shell()
        found = examine(site, scope, wishes)
    remember(common, found.inventory)
    output.show(doctor_text(found), doctor_document(found))
    if strict and not found.healthy:
        raise typer.Exit(3)
