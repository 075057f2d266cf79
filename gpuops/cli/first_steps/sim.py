"""`gpuops sim`: the simulated vCenter, with GPUs that refuse what real ones refuse."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.spread import spread

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
        typer.Option(metavar="FILE", help="Written once it listens (url, username, password, ca_file, pid)."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin with this state if it is there, and keep it there.")
    ] = None,
    clock: Annotated[
        SimClock,
        typer.Option(
            envvar="GPUOPS_SIM_CLOCK",
            help="What moves its time: real seconds and clients that wait or poll (virtual), real seconds alone, or "
            "requests and waits alone (stepped).",
        ),
    ] = SimClock.VIRTUAL,
    api_version: Annotated[
        SimApiVersion | None,
        typer.Option(help="Of vSphere: what a version lacks is not there. Without it that of the scenario."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Every choice it makes comes from this number.")] = 0,
    http: Annotated[bool, typer.Option("--http", help="Speak plain HTTP.")] = False,
    faults: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What shall go wrong: ids of `sim faults`, or rules.")
    ] = None,
    deviate: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Go by another rule than the assumed one (gpuops help troubleshooting)."),
    ] = None,
) -> None:
    """Serve a simulated vCenter on loopback until Ctrl-C or SIGTERM.

    Once it listens it prints what to type for govc, pyVmomi, Ansible and Terraform.

    \b
    Example:
      gpuops sim serve --scenario lab --port 0 --ready-file ready.json &
      gpuops inventory --vcenter sim@ready.json
    """
    from gpuops.report.first_steps.simulator import client_lines
    from gpuops.sim.server import start
    from gpuops.sim.wire import ready_file as ready

    rules = _rules(faults)
    with (
        _stopping() as stopped,
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
            ready.write(ready_file, ready.of(server))
        try:
            lines = client_lines(server.url, server.username, server.password, server.ca_file)
            # at once: a script may read only the first line
            beside = f" with a Connection Server at {horizon.url}" if horizon is not None else ""
            typer.echo(f"serving {scenario} at {server.url}{beside} (Ctrl-C stops it)\n\n{lines}")
            stopped.wait()
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
    from gpuops.report.first_steps.simulator import ledger_document, ledger_text
    from gpuops.sim.wire import ready_file as ready
    from gpuops.sim.wire.sim_client import SimClient

    effects = SimClient(ready.read(ready_file)).ledger()
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
    from gpuops.report.first_steps.simulator import faults_document, faults_text
    from gpuops.sim.fault_injection.rule import catalogue

    faults = [(fault.id, fault.sees) for fault in catalogue().values()]
    output.show(faults_text(faults), faults_document(faults))


def _rules(path: Path | None) -> tuple[Rule, ...]:
    if path is None:
        return ()
    from gpuops.sim.outside_events.fault_file import read

    return read(path)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets: that is the usual end of a server, not an error."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
