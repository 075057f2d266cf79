"""`gpuops rotate init`: what a policy wants of a vCenter, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, PolicyFile, spread


@spread
def init(
    common: Common,
    policy: Annotated[Path, PolicyFile],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is missing; change nothing.")] = False,
) -> None:
    """Make what a policy wants of a vCenter: the custom attributes, and the lock VM; report desktops without an owner.

    Once, by a login that may (Global.ManageCustomFields, VirtualMachine.Inventory.Create), which the nights then need
    not have. A second time there is nothing to do.

    \b
    Example:
      gpuops rotate init --policy templates/policy.yaml --dry-run --vcenter prod
    """
    from gpuops.api import rotate_init
    from gpuops.cli.opening import open_site
    from gpuops.config.policy import load_policy
    from gpuops.report.rotation_setup import setup_document, setup_text

    wanted = load_policy(policy)
    with open_site(common) as site:
        found = rotate_init(wanted, site, apply=not dry_run)
    output.show(setup_text(found), setup_document(found))
