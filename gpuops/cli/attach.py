"""`gpuops attach`: give a VM GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.options import Acting, Common, Saved, VmName, spread
from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.wanted import PinPolicy
from gpuops.plan.power import MoveMode, PowerPolicy


@spread
def attach(
    common: Common,
    acting: Acting,
    vm: VmName,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="vGPU profile: a100-3-20c.", autocompletion=completion.profiles),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", help="How many in all (not: how many more); default one.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="PCI-ADDRESS", help="A whole GPU, DirectPath I/O: 0000:3b:00.0. May be repeated."),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Any whole GPU of a kind, Dynamic DirectPath I/O.")
    ] = False,
    label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Hardware label the dynamic one must carry.")
    ] = None,
    device_type: Annotated[
        list[str] | None,
        typer.Option(metavar="VENDOR:DEVICE", help="Kind of the dynamic one: 10de:20f1. May be repeated."),
    ] = None,
    device_group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Vendor device group: Nvidia:2@grid_a100d-80c%NVLink.")
    ] = None,
    replace: Annotated[
        str | None, typer.Option(metavar="OLD", help="The profile, PCI address or `dynamic` that gives way.")
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Other GPU devices of the VM stay beside the new ones.")] = False,
    move: Annotated[
        MoveMode | None, typer.Option(help="cold: the VM may be moved, switched off, to a host that has the GPU.")
    ] = None,
    pin: Annotated[
        PinPolicy, typer.Option(help="auto: bind a vGPU to one GPU where --numa required depends on it.")
    ] = PinPolicy.AUTO,
    numa: Annotated[
        NumaPolicy, typer.Option(help="How much CPU, memory and GPU must share a NUMA node.")
    ] = NumaPolicy.PREFERRED,
    power: Annotated[
        PowerPolicy,
        typer.Option(
            help="What a change may do to a running VM. refuse: nothing is changed. cycle: it is stopped and started "
            "again. off: it is stopped. on: the VM runs afterwards, changed or not."
        ),
    ] = PowerPolicy.REFUSE,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="The host it is to be on.", autocompletion=completion.hosts)
    ] = None,
    saved: Saved = None,
) -> None:
    """Give a VM vGPUs, whole GPUs or a device group: in one reconfiguration, or not at all.

    A second run changes nothing and says so.

    \b
    Examples:
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
      gpuops attach --vm ml-07 --profile a100-3-20c --power on --explain --dry-run --vcenter sim:lab
      gpuops attach --vm ml-03 --device 0000:5e:00.0 --vcenter sim:lab
      gpuops attach --vm ml-08 --dynamic --label l40s-ml --vcenter sim:lab
    """
    from gpuops.api import run
    from gpuops.cli.running import carry_out
    from gpuops.plan.attach import Attach

    request = Attach(
        vm=vm,
        profile=profile,
        count=count,
        device=tuple(device or ()),
        dynamic=dynamic,
        label=label,
        device_type=tuple(device_type or ()),
        device_group=device_group,
        replace=replace,
        add=add,
        move=move,
        pin=pin,
        numa=numa,
        power=power,
        host=host,
    )
    carry_out(
        lambda site, apply, consent: run(request, site, apply=apply, consent=consent),
        "attach",
        common,
        acting,
        saved=saved,
    )
