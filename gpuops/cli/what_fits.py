"""`gpuops capacity`, `profiles` and `place`: what still fits, and where new VMs would go."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import Fixed, reads_sites, spread
from gpuops.errors import UsageError
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.command_line import Names, Option
from gpuops.plan.queue.place import Place

if TYPE_CHECKING:
    from gpuops.model.workloads.workload import Workload


@spread
@reads_sites
def capacity(
    common: CommonOptions,
    request: CapacityRequest,
    host_shell: HostShellOptions,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also count what fits once all desktops that this rotation policy may take are suspended.",
        ),
    ] = None,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Use a saved snapshot, without a vCenter.")
    ] = None,
    forecast: Annotated[
        bool,
        typer.Option(
            "--forecast", help="Show when each profile runs out, from the history that gpuops observe stores."
        ),
    ] = False,
) -> None:
    """Say how many more vGPUs and whole GPUs fit, and the largest request that does. Changes nothing.

    Each figure is for its profile alone: profiles share the same GPUs. A range means that vCenter does not report more;
    with --host-shell ssh gpuops runs nvidia-smi on the hosts to find where vGPUs lie.

    \b
    Examples:
      gpuops capacity --vcenter sim:lab
      gpuops capacity --profile a40-48c --policy templates/policy.yaml --vcenter sim:vdi
      gpuops capacity --forecast --vcenter sim:lab
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.advice.capacity_view import capacity_document, capacity_text

    if forecast:
        _forecast(common, request, host_shell, policy, inventory_file)
        return
    rotation_policy = load_policy(policy) if policy is not None else None
    with open_site(common, inventory_file=inventory_file) as site:
        host_shell.give_to(site, inventory_file)
        inventory = site.with_vgpus(read_inventory(site, common, inventory_file=inventory_file))
        free_room = api.capacity(request, inventory, site, rotation_policy)
    policy_name = rotation_policy.name if rotation_policy is not None else None
    output.show(capacity_text(free_room, request.scope, policy_name), capacity_document(free_room, policy_name))


def _forecast(
    common: CommonOptions,
    request: CapacityRequest,
    host_shell: HostShellOptions,
    policy: Path | None,
    inventory_file: Path | None,
) -> None:
    """Print when profiles run out. Raises UsageError for an option that excludes a forecast."""
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.extensions import load

    excluded = {
        "--policy": policy,
        "--inventory": inventory_file,
        "--cluster": request.cluster,
        "--host": request.host,
    }
    if conflicting := next((name for name, setting in excluded.items() if setting is not None), None):
        raise UsageError(
            f"--forecast and {conflicting} exclude each other",
            hint="the history is that of a complete vCenter: remove one of the two options",
        )
    with open_site(common) as site:
        host_shell.give_to(site)
        inventory = site.with_vgpus(read_inventory(site, common))
        forecasts = load("gpuops.extras.observe.running_out.capacity_forecast")(request, inventory, site)
    output.show(*load("gpuops.extras.observe.view.run_out_views")(forecasts, inventory))


@dataclass(frozen=True, slots=True)
class OneVm:
    """The VM of the command line; a file has the same keys (config/requests_file.py)."""

    profile: Annotated[
        tuple[str, ...],
        Option("vGPU profile: a100-3-20c. Several, of one GPU model: a vGPU of each.", "NAME", Names.PROFILES),
    ] = ()
    count: Annotated[int | None, Option("How many vGPUs in the one VM; default one.", "N", least=1, most=64)] = None
    gpus: Annotated[int | None, Option("Whole GPUs of one model, DirectPath I/O.", "N", least=1, most=64)] = None
    model: Annotated[str | None, Option("Model of the whole GPUs or other devices: l40s; default any GPU.", "NAME")] = (
        None
    )
    label: Annotated[str | None, Option("Hardware label the whole devices must carry.", "LABEL", Names.LABELS)] = None
    device: Annotated[
        tuple[str, ...],
        Option(
            "This whole GPU or other device, DirectPath I/O: 0000:5e:00.0. May be repeated.",
            "PCI-ADDRESS",
            Names.DEVICES,
        ),
    ] = ()
    device_group: Annotated[str | None, Option("A vendor device group: Nvidia:2@grid_a100d-80c%NVLink.", "NAME")] = None
    vcpu: Annotated[int | None, Option("vCPUs of the VM.", "N", least=1, most=4096)] = None
    memory: Annotated[str | None, Option("Memory of the VM: 64GiB.", "SIZE")] = None
    numa: Annotated[
        NumaPolicy | None, Option("How much CPU, memory and GPU must share a NUMA node; default preferred.")
    ] = None
    cluster: Annotated[str | None, Option("Only hosts of this cluster.", "NAME", Names.CLUSTERS)] = None
    host: Annotated[str | None, Option("Only hosts named so: esx-0*.", "HOST", Names.HOSTS)] = None
    tag: Annotated[
        tuple[str, ...], Option("Only hosts that carry this tag. May be repeated: all of them.", "CATEGORY:TAG")
    ] = ()
    until: Annotated[
        str | None,
        Option(
            "When the VM ends: 2026-11-03T05:00+01:00. Suspended VMs that return later keep no GPU from it.", "MOMENT"
        ),
    ] = None


@spread
@reads_sites
def place(
    common: CommonOptions,
    vm_options: OneVm,
    request: Annotated[Place, Fixed(workloads=())],
    host_shell: HostShellOptions,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many requests: .yaml (templates/requests.yaml) or .csv.")
    ] = None,
    mig_layout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME", help="Plan as if the GPUs (of --host) had only the GPU instances of this layout."
        ),
    ] = None,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Use a saved inventory, without a vCenter.")
    ] = None,
) -> None:
    """Say where a VM that does not exist yet would go, or many of them. Nothing is ever written.

    Exit code 3 if a VM has no place; every reason is shown. With --host-shell ssh gpuops runs nvidia-smi on the hosts
    to find where vGPUs lie on GPUs in MIG or mixed-size mode, which vCenter does not report.

    \b
    Examples:
      gpuops place --profile a100-3-20c --vcpu 16 --memory 64GiB --vcenter sim:lab
      gpuops place --profile a100-3-20c --profile a100-1-5c --vcpu 16 --memory 64GiB --vcenter sim:lab
      gpuops place --gpus 1 --model l40s --vcpu 8 --memory 64GiB --numa required --explain --vcenter sim:lab
      gpuops place --file templates/requests.yaml --output json --vcenter sim:lab
      gpuops place --file templates/requests.yaml --optimize --vcenter sim:lab
    """
    options = _typed_options(vm_options)
    workloads = _load_requests(file, options) if file is not None else (_one_request(options),)

    from gpuops import api
    from gpuops.config.layout_file import parse_layout_option
    from gpuops.console.opening import open_site, remember
    from gpuops.model.fleet_change import ApplyLayout
    from gpuops.report.advice.placement_view import placements_document, placements_text

    layout = ApplyLayout(parse_layout_option(mig_layout), vm_options.host) if mig_layout is not None else None
    with open_site(common, inventory_file=inventory_file) as site:
        host_shell.give_to(site, inventory_file)
        placements = api.place(replace(request, workloads=workloads), site, layout)
    if inventory_file is None:
        remember(common, placements.before)
    output.show(
        placements_text(placements, explain=request.explain),
        placements_document(placements, api.catalog_of(placements.before)),
    )
    output.leave(placements.exit_code)


def _typed_options(vm_options: OneVm) -> dict[str, object]:
    """Return the typed options of the VM; sequences as lists, as in a file."""
    typed = {
        f"--{name.replace('_', '-')}": setting
        for name, setting in asdict(vm_options).items()
        if setting not in (None, ())
    }
    return {option: list(setting) if isinstance(setting, tuple) else setting for option, setting in typed.items()}


def _load_requests(file: Path, options: dict[str, object]) -> tuple[Workload, ...]:
    from gpuops.config.requests_file import load_requests

    if options:
        raise UsageError(
            f"--file and {next(iter(options))} exclude each other",
            hint=f"write {next(iter(options)).removeprefix('--')} into the file, as in templates/requests.yaml",
        )
    return load_requests(file)


def _one_request(options: dict[str, object]) -> Workload:
    from gpuops.config.requests_file import request_of

    return request_of({option.removeprefix("--"): setting for option, setting in options.items()})


def _models(incomplete: str) -> list[str]:
    from gpuops.catalog import load

    return [board.key for board in load(everything=True).boards if board.key.startswith(incomplete.lower())]


@spread
def profiles(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="GPU model: a100. Default: list them.", autocompletion=_models),
    ] = None,
) -> None:
    """Show the vGPU profiles of a GPU model, and which of them may run on one GPU together.

    It is read from the catalogue that comes with gpuops (gpuops help profiles); no vCenter is asked.

    \b
    Examples:
      gpuops profiles
      gpuops profiles a100
      gpuops profiles 'NVIDIA L40S' --output json
    """
    from gpuops.advise.gpu_profiles import profiles_of
    from gpuops.catalog import load
    from gpuops.plan.capacity.gpu_models import find_board
    from gpuops.report.advice.gpu_profiles_view import (
        ProfilesModelsDocument,
        models_text,
        profiles_document,
        profiles_text,
    )

    catalog = load(everything=True)
    if model is None:
        output.show(models_text(catalog.boards), ProfilesModelsDocument.from_attributes(models=catalog.boards))
        return
    gpu_profiles = profiles_of(find_board(model, catalog))
    output.show(profiles_text(gpu_profiles), profiles_document(gpu_profiles))
