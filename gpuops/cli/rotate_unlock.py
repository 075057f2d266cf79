"""`gpuops rotate unlock`: the lease of a run that is dead, given back in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, PolicyFile, spread


@spread
def unlock(
    common: Common,
    nonce: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The very lease that is meant; without it, who holds it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even of a lease that was renewed a moment ago.")] = False,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Give back the lease of a run on another machine that is dead for certain; of this id and no other.

    Nobody has to: a lease that is not renewed runs out after three minutes. Without --id it says who holds it.
    One that was renewed within the last 90 seconds is given back with --force alone: its run is alive, or died just
    now. A run that lives all the same may end what it has in flight, and starts nothing once it looks at the lease.
    Of a lock VM that was reverted to a snapshot the id is the highest lease number that was seen, as a night that is
    refused for it says: the lock VM then carries that number again.

    \b
    Example:
      gpuops rotate unlock --id 5f0c9a1e7d3b2a64 --policy templates/policy.yaml --vcenter prod
    """
    from rich.text import Text

    from gpuops.api import rotate_unlock
    from gpuops.cli.opening import open_site
    from gpuops.config.policy import load_policy
    from gpuops.report.plan_json import SCHEMA_VERSION
    from gpuops.report.rotation_status import lease_document
    from gpuops.report.text import visible

    wanted = load_policy(policy) if policy is not None else None
    with open_site(common, guarded=True) as site:
        found = rotate_unlock(wanted, site, nonce, force=force)
    document = {"schema_version": SCHEMA_VERSION, "kind": "rotate-unlock", "lease": lease_document(found)}
    told = f"given back: the lease of {visible(found.owner)}"
    if not found.nonce:
        told = f"set right: the lock VM carries lease number {found.epoch} again, and nobody holds it"
    output.show(Text(told), document)
