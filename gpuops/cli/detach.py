"""`gpuops detach`: take GPUs from a VM, and put back what attach changed."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.options import Acting, Common, Saved, VmName, spread
from gpuops.plan.power import PowerPolicy


@spread
def detach(
    common: Common,
    acting: Acting,
    vm: VmName,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="vGPU profile: a100-3-20c.", autocompletion=completion.profiles)
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="PCI-ADDRESS", help="A whole GPU, DirectPath I/O: 0000:3b:00.0. May be repeated."),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Dynamic DirectPath I/O devices, all or those named below.")
    ] = False,
    label: Annotated[str | None, typer.Option(metavar="LABEL", help="Only the dynamic ones with this label.")] = None,
    device_type: Annotated[
        list[str] | None,
        typer.Option(metavar="VENDOR:DEVICE", help="Only the dynamic ones of this kind. May be repeated."),
    ] = None,
    device_group: Annotated[
        str | None, typer.Option(metavar="NAME", help="All devices of this vendor device group.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every GPU device; other passthrough devices stay.")] = False,
    count: Annotated[int | None, typer.Option(metavar="N", help="How many stay; default none.")] = None,
    power: Annotated[
        PowerPolicy,
        typer.Option(
            help="What a change may do to a running VM. refuse: nothing is changed. cycle: it is stopped and started "
            "again. off: it is stopped. on: the VM runs afterwards, changed or not."
        ),
    ] = PowerPolicy.REFUSE,
    saved: Saved = None,
) -> None:
    """Take GPU devices from a VM; with the last one, what attach changed is put back exactly.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops detach --vm ml-01 --profile a100-3-20c --vcenter sim:lab
      gpuops detach --vm ml-05 --all --dry-run --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.cli.running import carry_out
    from gpuops.plan.detach import Detach

    request = Detach(
        vm=vm,
        profile=profile,
        device=tuple(device or ()),
        dynamic=dynamic,
        label=label,
        device_type=tuple(device_type or ()),
        device_group=device_group,
        all=all,
        count=count,
        power=power,
    )
    carry_out(
        lambda site, apply, consent: run(request, site, apply=apply, consent=consent),
        "detach",
        common,
        acting,
        saved=saved,
    )
