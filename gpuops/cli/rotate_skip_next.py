"""`gpuops rotate skip-next`: one night off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, PolicyFile, spread


@spread
def skip_next(
    common: Common,
    policy: Annotated[Path, PolicyFile],
    undo: Annotated[bool, typer.Option("--undo", help="Take it after all.")] = False,
) -> None:
    """Skip the next night of a policy: the one that is open and has taken nothing, or else the first to open.

    Kept in the journal: `rotate night` then ends with exit code 0 and says so; `rotate status` and `plan` tell of it.

    \b
    Example:
      gpuops rotate skip-next --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import rotate_skip_next
    from gpuops.cli.opening import open_site
    from gpuops.config.policy import load_policy
    from gpuops.report.rotation_setup import skip_document, skip_text

    wanted = load_policy(policy)
    with open_site(common, guarded=True) as site:
        found = rotate_skip_next(wanted, site, undo=undo)
    output.show(skip_text(found), skip_document(found))
