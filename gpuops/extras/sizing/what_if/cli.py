"""`gpuops what-if`: the same requests and the same night on the fleet as it is, and after planned changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.comparing import compare_fleets
from gpuops.extras.sizing.what_if.question import ARRIVALS, SEEDS, WhatIf
from gpuops.model.fleet_change import GpuServing
from gpuops.plan.core.command_line import Names, Option

if TYPE_CHECKING:
    from gpuops.model.fleet_change import FleetChange


@dataclass(frozen=True, slots=True)
class ChangesSaid:
    """The changes as options of the command line; a file has the same keys (config/changes_file.py)."""

    add_hosts: Annotated[
        tuple[str, ...],
        Option("More hosts: 2xL40S:8, or 2xL40S:8:mixedSize. May be repeated, as all of these.", "COUNTxMODEL:GPUS"),
    ] = ()
    like: Annotated[
        str | None,
        Option("Added hosts are copies of this host; --add-hosts 2 then has its GPUs too.", "HOST", Names.HOSTS),
    ] = None
    lose_host: Annotated[tuple[str, ...], Option("A host is dead.", "HOST", Names.HOSTS)] = ()
    lose_gpu: Annotated[tuple[str, ...], Option("A GPU is gone: esx-01/0000:3b:00.0.", "HOST/PCI-ADDRESS")] = ()
    vgpu_mode: Annotated[GpuServing | None, Option("Set this vGPU mode on the GPUs of --host, --model and --gpu.")] = (
        None
    )
    mig_layout: Annotated[
        str | None,
        Option("GPUs have the GPU instances of this layout; those of --host, --model and --gpu.", "FILE:NAME"),
    ] = None
    host: Annotated[
        str | None, Option("With --vgpu-mode or --mig-layout: hosts named so (esx-0*).", "HOST", Names.HOSTS)
    ] = None
    model: Annotated[str | None, Option("With --vgpu-mode or --mig-layout: GPUs of this model (a40).", "NAME")] = None
    gpu: Annotated[
        tuple[str, ...], Option("With --vgpu-mode or --mig-layout: GPUs at this address.", "PCI-ADDRESS", Names.DEVICES)
    ] = ()
    change_profile: Annotated[
        tuple[str, ...], Option("VMs named so, or a pool of --policy, have another profile.", "'vdi-*=a40-4q'")
    ] = ()
    add_vms: Annotated[
        tuple[str, ...], Option("More VMs run: 50xa40-8q, or 50x and a pool of --policy.", "COUNTxPROFILE|POOL")
    ] = ()


@spread
@reads_sites
def what_if(
    common: CommonOptions,
    change_options: ChangesSaid,
    changes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Changes of a file, beside options: templates/what-if.yaml.")
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Requests to place on both: .yaml (templates/requests.yaml) or .csv."),
    ] = None,
    arrivals: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, metavar="N", show_default=str(ARRIVALS), help="Make up N requests instead."),
    ] = None,
    any_model: Annotated[
        bool,
        typer.Option("--any-model", help="A request without a place may have a vGPU of its size on another model."),
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, metavar="N", help="Repeat with N sets of random numbers.")
    ] = SEEDS,
    policy: Annotated[Path | None, PolicyFile] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="MOMENT", help="When the night begins, as of rotate plan; default: now, or the next."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the changed fleet, for --inventory of other commands.")
    ] = None,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Ask a saved inventory, without a vCenter.")
    ] = None,
) -> None:
    """Compare the fleet with itself after planned changes: which requests are placed or wait, and the GPUs of a night.

    The same requests are placed on both, those of a file, of recorded days (gpuops observe), or made up as what runs
    now; with --policy the same night is planned on both. Nothing is ever written to vCenter.

    \b
    Examples:
      gpuops what-if --add-hosts 2xL40S:8 --vcenter sim:lab
      gpuops what-if --vgpu-mode mixedSize --host esx-02* --requests templates/requests.yaml --vcenter sim:lab
      gpuops what-if --mig-layout templates/mig-layout.yaml:balanced --arrivals 20 --vcenter sim:lab
      gpuops what-if --lose-host esx-01.lab --policy templates/policy.yaml --vcenter sim:lab
      gpuops what-if --changes templates/what-if.yaml --arrivals 40 --output json --vcenter sim:lab
    """
    from gpuops.config.date_text import parse_moment_or_clock
    from gpuops.config.policy import load_policy
    from gpuops.config.requests_file import load_requests
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.extras.sizing.what_if.view import WhatIfDocument, what_if_text

    if requests is not None and arrivals is not None:
        raise UsageError("--requests and --arrivals exclude each other", hint="leave one of them out")
    if at is not None and policy is None:
        raise UsageError("--at needs --policy", hint="add --policy FILE: its night is planned")
    question = WhatIf(
        _changes(change_options, changes),
        load_requests(requests) if requests is not None else (),
        arrivals,
        seeds,
        any_model,
    )
    night = load_policy(policy) if policy is not None else None
    moment = parse_moment_or_clock("--at", at) if at is not None else None
    with open_site(common, inventory_file=inventory_file) as site:
        answer = compare_fleets(
            question, read_inventory(site, common, inventory_file=inventory_file), site, night, moment
        )
    if save is not None:
        from gpuops.config.snapshot import save as write

        write(answer.then.fleet.inventory, save)
    output.show(what_if_text(answer, save), WhatIfDocument.made_of(answer))


def _changes(change_options: ChangesSaid, file: Path | None) -> tuple[FleetChange, ...]:
    """Return all changes, those of options first. Raises UsageError."""
    from gpuops.config.changes_file import added_hosts, added_vms, changed_profiles, load_changes, lost_gpus
    from gpuops.model.fleet_change import LoseHost

    return (
        *added_hosts(change_options.add_hosts, change_options.like),
        *map(LoseHost, change_options.lose_host),
        *lost_gpus(change_options.lose_gpu),
        *_gpu_changes(change_options),
        *changed_profiles(change_options.change_profile),
        *added_vms(change_options.add_vms),
        *(load_changes(file) if file is not None else ()),
    )


def _gpu_changes(change_options: ChangesSaid) -> tuple[FleetChange, ...]:
    """Return the change of --vgpu-mode or --mig-layout, for the GPUs of its filters. Raises UsageError."""
    from gpuops.config.layout_file import parse_layout_option
    from gpuops.model.devices.gpu import PciAddress
    from gpuops.model.fleet_change import ApplyLayout, ChangeGpuMode

    if change_options.vgpu_mode is not None and change_options.mig_layout is not None:
        raise UsageError("--vgpu-mode and --mig-layout exclude each other", hint="leave one of them out")
    addresses = tuple(map(PciAddress.parse, change_options.gpu))
    if change_options.vgpu_mode is not None:
        return (ChangeGpuMode(change_options.vgpu_mode, change_options.host, change_options.model, addresses),)
    if change_options.mig_layout is not None:
        return (
            ApplyLayout(
                parse_layout_option(change_options.mig_layout), change_options.host, change_options.model, addresses
            ),
        )
    stray = {"--host": change_options.host, "--model": change_options.model, "--gpu": change_options.gpu}
    option = next((name for name, setting in stray.items() if setting), None)
    if option is not None:
        raise UsageError(f"{option} needs --vgpu-mode or --mig-layout", hint="add what changes: --vgpu-mode mixedSize")
    return ()
