"""`gpuops detach`: take GPUs from a VM, and put back what attach changed."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.options import Acting, Common, Saved, spread


@spread
def detach(
    common: Common,
    acting: Acting,
    vm: Annotated[
        str, typer.Option(help="Name, path, moid:vm-42 or uuid:...", metavar="VM", autocompletion=completion.vms)
    ],
    saved: Saved = None,
) -> None:
    """Take GPU devices from a VM, and put back exactly what attach changed.

    \b
    Example:
      gpuops detach --vm ml-07 --vcenter sim:lab
    """
