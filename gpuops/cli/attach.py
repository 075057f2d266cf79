"""`gpuops attach`: give a VM GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.options import Acting, Common, Saved, spread


@spread
def attach(
    common: Common,
    acting: Acting,
    vm: Annotated[
        str, typer.Option(help="Name, path, moid:vm-42 or uuid:...", metavar="VM", autocompletion=completion.vms)
    ],
    profile: Annotated[
        str | None,
        typer.Option(help="vGPU profile, e.g. a100-3-20c.", metavar="NAME", autocompletion=completion.profiles),
    ] = None,
    saved: Saved = None,
) -> None:
    """Give a VM vGPUs, DirectPath I/O devices or a device group, in one reconfiguration.

    \b
    Examples:
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
    """
