"""`gpuops place`: where VMs that do not exist yet would go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import completion, output
from gpuops.cli.options import Common, spread
from gpuops.errors import UsageError
from gpuops.model.numa import NumaPolicy
from gpuops.plan.claims import SuspendedPolicy
from gpuops.plan.placement.wanted import PinPolicy

if TYPE_CHECKING:
    from gpuops.model.workload import Workload


@spread
def place(
    common: Common,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="vGPU profile: a100-3-20c. Several, of one GPU model: a vGPU of each.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="N", help="How many vGPUs in the one VM; default one.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="N", help="Whole GPUs of one model, DirectPath I/O.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of the whole GPUs: l40s; default any.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Hardware label the whole GPUs must carry.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="PCI-ADDRESS", help="This whole GPU, DirectPath I/O: 0000:5e:00.0. May be repeated."),
    ] = None,
    device_group: Annotated[
        str | None, typer.Option(metavar="NAME", help="A vendor device group: Nvidia:2@grid_a100d-80c%NVLink.")
    ] = None,
    vcpu: Annotated[int | None, typer.Option(min=1, max=4096, metavar="N", help="vCPUs of the VM.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of the VM: 64GiB.")] = None,
    numa: Annotated[
        NumaPolicy | None,
        typer.Option(help="How much CPU, memory and GPU must share a NUMA node; default preferred."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Only hosts of this cluster.")] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only hosts named so: esx-0*.", autocompletion=completion.hosts),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="CATEGORY:TAG", help="Only hosts that carry this tag. May be repeated: all of them."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="When the VM is gone again, 2026-11-03T05:00+01:00: what comes back later keeps no GPU from it.",
        ),
    ] = None,
    pin: Annotated[
        PinPolicy,
        typer.Option(
            help="auto: bind vGPUs to their GPUs where the order of power-on or --numa required depends on it."
        ),
    ] = PinPolicy.AUTO,
    suspended: Annotated[
        SuspendedPolicy,
        typer.Option(help="claim: the GPUs of suspended VMs are kept for their return. ignore: they are free."),
    ] = SuspendedPolicy.CLAIM,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many requests: .yaml (templates/requests.yaml) or .csv.")
    ] = None,
    optimize: Annotated[
        bool,
        typer.Option("--optimize", help="All at once, by a solver; tells how much more is possible."),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show every host and GPU looked at, and why.")] = False,
    saved: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Ask a saved inventory, without a vCenter.")
    ] = None,
) -> None:
    """Say where a VM that does not exist yet would go, or many of them. Nothing is ever written.

    Exit code 3 when one has no place; every reason is given.

    \b
    Examples:
      gpuops place --profile a100-3-20c --vcpu 16 --memory 64GiB --vcenter sim:lab
      gpuops place --profile a100-3-20c --profile a100-1-5c --vcpu 16 --memory 64GiB --vcenter sim:lab
      gpuops place --gpus 1 --model l40s --vcpu 8 --memory 64GiB --numa required --explain --vcenter sim:lab
      gpuops place --file templates/requests.yaml --output json --vcenter sim:lab
      gpuops place --file templates/requests.yaml --optimize --vcenter sim:lab
    """
    one: dict[str, object] = {
        "--profile": profile,
        "--count": count,
        "--gpus": gpus,
        "--model": model,
        "--label": label,
        "--device": device,
        "--device-group": device_group,
        "--vcpu": vcpu,
        "--memory": memory,
        "--numa": numa,
        "--cluster": cluster,
        "--host": host,
        "--tag": tag,
        "--until": until,
    }
    given = {option: value for option, value in one.items() if value not in (None, [])}
    workloads = _of_file(file, given) if file is not None else (_single(given),)

    from gpuops import api
    from gpuops.cli.opening import open_site, remember
    from gpuops.plan.place import Place
    from gpuops.report.placement_json import placements_document
    from gpuops.report.placement_text import placements_text

    with open_site(common, saved=saved) as site:
        found = api.place(Place(workloads, explain=explain, pin=pin, suspended=suspended, optimize=optimize), site)
    if saved is None:
        remember(common, found.before)
    output.show(placements_text(found, explain=explain), placements_document(found, api.catalog_of(found.before)))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _of_file(file: Path, given: dict[str, object]) -> tuple[Workload, ...]:
    from gpuops.config.requests_file import load_requests

    if given:
        raise UsageError(
            f"--file and {next(iter(given))} exclude each other", hint="say it in the file: templates/requests.yaml"
        )
    return load_requests(file)


def _single(given: dict[str, object]) -> Workload:
    from gpuops.config.requests_file import request_of

    return request_of({option.removeprefix("--"): value for option, value in given.items()})
