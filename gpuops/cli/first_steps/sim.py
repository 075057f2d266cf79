"""`gpuops sim` and `gpuops demo`: the simulated vCenter, and the main job on it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.spread import spread
from gpuops.errors import PartlyDone, VcenterUnreachable

if TYPE_CHECKING:
    from gpuops.sim.fault_injection.rule import Rule

sim = VerbTable("sim", "Serve a simulated vCenter on this machine, and read what was done to it.")


class SimClock(StrEnum):
    """What moves the time of a simulated vCenter."""

    VIRTUAL = "virtual"
    REAL = "real"
    STEPPED = "stepped"


class SimApiVersion(StrEnum):
    """The API versions that a simulated vCenter is served with."""

    V8_0_2 = "8.0.2.0"
    V8_0_3 = "8.0.3.0"
    V9_0 = "9.0.0.0"
    V9_1 = "9.1.0.0"


@sim.command()
@spread
def serve(
    scenario: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.scenarios,
            help="lab, vdi, scattered, supervisor, accelerators, fleet, stacks, training, a YAML file, or a bundle.",
        ),
    ] = "lab",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 0,
    horizon_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve a simulated Horizon Connection Server too, on this port; 0 = any free one."
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write this file once it listens (url, username, password, ca_file, pid)."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Start with the state in this file if it exists, and store the state there."),
    ] = None,
    clock: Annotated[
        SimClock,
        typer.Option(
            envvar="GPUOPS_SIM_CLOCK",
            help="What moves its time: real seconds, and clients that wait or poll (virtual); only real seconds "
            "(real); only requests and waits (stepped).",
        ),
    ] = SimClock.VIRTUAL,
    api_version: Annotated[
        SimApiVersion | None,
        typer.Option(help="The version of vSphere, with only what that version has; default: that of the scenario."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of all random choices.")] = 0,
    http: Annotated[bool, typer.Option("--http", help="Speak plain HTTP.")] = False,
    faults: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The faults to inject: ids of `sim faults`, or rules.")
    ] = None,
    deviate: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Deviate from this assumed rule (gpuops help troubleshooting)."),
    ] = None,
) -> None:
    """Serve a simulated vCenter on loopback until Ctrl-C or SIGTERM.

    Once it listens it prints what to type for govc, pyVmomi, Ansible and Terraform.

    \b
    Example:
      gpuops sim serve --scenario lab --port 0 --ready-file ready.json &
      gpuops inventory --vcenter sim@ready.json
    """
    from gpuops.report.first_steps.simulator_view import client_lines
    from gpuops.sim.server import start
    from gpuops.sim.wire import sim_client

    rules = _rules(faults)
    with (
        _stop_on_signal() as stop_requested,
        start(
            scenario,
            port=port,
            tls=not http,
            clock=clock.value,
            seed=seed,
            api_version=api_version,
            state=state,
            rules=rules,
            deviations=deviate or (),
        ) as server,
    ):
        horizon = server.serve_horizon(horizon_port) if horizon_port is not None else None
        if ready_file is not None:
            sim_client.write(ready_file, sim_client.of(server))
        try:
            lines = client_lines(server.url, server.username, server.password, server.ca_file)
            broker_text = f" with a Connection Server at {horizon.url}" if horizon is not None else ""
            # in one call: a script may read only the first line and close the pipe
            typer.echo(f"serving {scenario} at {server.url}{broker_text} (Ctrl-C stops it)\n\n{lines}")
            stop_requested.wait()
        finally:
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)


@sim.command()
@spread
def ledger(
    ready_file: Annotated[Path, typer.Option(metavar="FILE", help="The file that `sim serve` wrote.")],
) -> None:
    """Print every effect that was applied to a served simulated vCenter, in order.

    \b
    Example:
      gpuops sim ledger --ready-file ready.json --output json
    """
    from gpuops.report.first_steps.simulator_view import ledger_document, ledger_text
    from gpuops.sim.wire import sim_client

    effects = sim_client.SimClient(sim_client.read(ready_file)).ledger()
    output.show(ledger_text(effects), ledger_document(effects))


@sim.command("faults")
@spread
def list_faults() -> None:
    """List the faults that a served simulated vCenter can have in store.

    \b
    Example:
      gpuops sim faults
      gpuops sim serve --scenario vdi --faults faults.yaml --ready-file ready.json &
    """
    from gpuops.report.first_steps.simulator_view import faults_document, faults_text
    from gpuops.sim.fault_injection.rule import catalogue

    faults = [(fault.id, fault.sees) for fault in catalogue().values()]
    output.show(faults_text(faults), faults_document(faults))


def _rules(path: Path | None) -> tuple[Rule, ...]:
    if path is None:
        return ()
    from gpuops.sim.outside_events.fault_file import read

    return read(path)


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets: that is the usual end of a server, not an error."""
    stop_requested = threading.Event()
    previous_handlers = {
        number: signal.signal(number, lambda *_: stop_requested.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop_requested
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Scene:
    """A line of explanation, a command as typed, and its expected exit code."""

    says: str
    command: str
    exit_code: int = 0


SCENES: Final = (
    Scene("What this vCenter has: hosts, NUMA nodes, GPUs, who holds what, what is free.", "gpuops inventory"),
    Scene(
        "What an attach would do, and why there. Nothing is written.",
        "gpuops attach --vm ml-07 --profile a100-3-20c --dry-run --explain",
    ),
    Scene("Now for real: one reconfiguration, all or nothing.", "gpuops attach --vm ml-07 --profile a100-3-20c"),
    Scene("A second run finds it done.", "gpuops attach --vm ml-07 --profile a100-3-20c"),
    Scene("A wrong name is one line, and nothing half done.", "gpuops attach --vm ml-07 --profile a100-9-99c", 2),
    Scene(
        "The evening: idle desktops are suspended, ML VMs run on the freed GPUs.",
        "gpuops rotate night --policy {policy} --yes",
    ),
    Scene("Where each VM is at night.", "gpuops rotate status"),
    Scene("The morning: the ML VMs stop, every desktop is back.", "gpuops rotate day --policy {policy} --yes"),
    Scene("ml-07 gives its GPU back and is as it was.", "gpuops detach --vm ml-07 --all"),
    Scene("What the simulated vCenter itself recorded.", "gpuops sim ledger --ready-file {ready}"),
)


@spread
def demo(
    scenario: Annotated[str, typer.Option(metavar="NAME", help="The simulated vCenter to show it on.")] = "lab",
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rotation policy; default: the one of the lab.")
    ] = None,
) -> None:
    """Watch a GPU go into a VM, a night and a morning, on a simulated vCenter.

    Example: gpuops demo
    """
    from gpuops.config.policy import load_policy
    from gpuops.sim.scenario.scenario_file import read as read_scenario

    # errors in them are reported before anything is shown
    load_policy(policy or _lab_policy())
    read_scenario(scenario)
    with (
        tempfile.TemporaryDirectory(prefix="gpuops-demo-") as folder,
        _serve_vcenter(scenario, Path(folder)) as environment,
    ):
        ready = environment["GPUOPS_VCENTER"].removeprefix("sim@")
        for scene in SCENES:
            _play(scene, {"policy": str(policy or _lab_policy()), "ready": ready}, environment)


def _lab_policy() -> Path:
    from importlib.resources import files

    return Path(str(files("gpuops.sim"))) / "scenarios" / "lab-policy.yaml"


@contextmanager
def _serve_vcenter(scenario: str, folder: Path) -> Iterator[Mapping[str, str]]:
    """Start a simulated vCenter; yield the environment that connects every command of the demo to it."""
    ready = folder / "vcenter.json"
    serve = ["sim", "serve", "--scenario", scenario, "--clock", "stepped", "--port", "0", "--ready-file", str(ready)]
    # without the variables by which the user selects another vCenter
    connecting = ("GPUOPS_", "VMWARE_", "GOVC_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(connecting)}
    environment |= {"GPUOPS_VCENTER": f"sim@{ready}", "GPUOPS_STATE_DIR": str(folder / "state")}
    with subprocess.Popen(_gpuops(serve), env=environment, stdout=subprocess.PIPE, encoding="utf-8") as server:  # noqa: S603
        try:
            assert server.stdout is not None
            server.stdout.readline()  # waits: its first line comes once it listens, after the ready file is written
            if not ready.exists():
                raise VcenterUnreachable("the simulated vCenter did not start", hint="read its message above")
            yield environment
        finally:
            server.terminate()


def _play(scene: Scene, places: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Print the command of a scene and run it. Raises PartlyDone for another exit code than the scene expects."""
    command = scene.command.format_map(places)
    is_plain = output.manners().no_color
    color = False if is_plain else None  # None = as stdout takes it
    typer.secho(f"\n# {scene.says}", dim=True, color=color)
    typer.secho(f"$ {command}", bold=True, color=color)
    sys.stdout.flush()
    plain = ["--no-color"] if is_plain else []
    completed = subprocess.run(_gpuops([*plain, *shlex.split(command)[1:]]), env=environment, check=False)  # noqa: S603
    if completed.returncode != scene.exit_code:
        raise PartlyDone(
            f"`{command}` ended with exit code {completed.returncode}, not {scene.exit_code}",
            hint="this is a bug of gpuops: report it with the output above",
        )


def _gpuops(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "gpuops", *arguments]
