"""`gpuops demo`: the main job on a simulated vCenter, typed as a person would type it.

It starts `gpuops sim serve`, in stepped time so that every machine shows the same, and runs every command as a process
of its own, so that what it shows is what a terminal shows. Each command must end with the exit code said here; any
other ends the demo with that command's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from gpuops.console import output
from gpuops.console.spread import spread
from gpuops.errors import PartlyDone, VcenterUnreachable


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
    foreign = ("GPUOPS_", "VMWARE_", "GOVC_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    environment |= {"GPUOPS_VCENTER": f"sim@{ready}", "GPUOPS_STATE_DIR": str(folder / "state")}
    with subprocess.Popen(_gpuops(serve), env=environment, stdout=subprocess.PIPE, encoding="utf-8") as server:  # noqa: S603
        try:
            assert server.stdout is not None
            server.stdout.readline()  # waits: its first line comes once it listens, after the ready file is written
            if not ready.exists():
                raise VcenterUnreachable("the simulated vCenter did not start", hint="its own message stands above")
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
    ended = subprocess.run(_gpuops([*plain, *shlex.split(command)[1:]]), env=environment, check=False)  # noqa: S603
    if ended.returncode != scene.exit_code:
        raise PartlyDone(
            f"`{command}` ended with exit code {ended.returncode}, not {scene.exit_code}",
            hint="what it printed stands above; this is a bug of gpuops",
        )


def _gpuops(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "gpuops", *arguments]
