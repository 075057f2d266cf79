"""The command line against a simulated vCenter, with no configuration of this machine in the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import ready_file
from tests.cli.advice import Advice, fingerprint


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and none of the variables that say something of a connection."""
    families = ("GPUOPS_", "VMWARE_", "GOVC_", "XDG_", "CREDENTIALS_", "REQUESTS_")
    for name in [name for name in os.environ if name.startswith(families)]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@dataclass(frozen=True)
class Lab:
    """A served simulated vCenter and the command line pointed at it."""

    server: SimServer
    ready: Path
    advice: list[Advice] = field(default_factory=list)
    """What its commands advised, to be played when the test is over."""

    def run(self, *arguments: str, **more: Any) -> Result:
        result = self.typed(*arguments, **more)
        for each in self.advice:
            each.note(arguments, result)
        return result

    def typed(self, *arguments: str, **more: Any) -> Result:
        return CliRunner().invoke(app, [*arguments, "--vcenter", f"sim@{self.ready}"], **more)

    @property
    def effects(self) -> list[str]:
        """Every applied effect, as `Method name`."""
        return [f"{entry.method} {entry.name}" for entry in self.server.world.ledger]


@pytest.fixture
def lab(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    """The scenario `lab`. What the test's last command advised is played when the test is over."""
    with start("lab") as server:
        path = tmp_path / "ready.json"
        ready_file.write(path, ready_file.of(server))
        lab = Lab(server, path)
        advice = Advice(lab.typed, lambda: fingerprint(len(server.world.ledger), clean))
        lab.advice.append(advice)
        yield lab
        assert advice.play() == []


@pytest.fixture
def gpuops() -> Callable[..., Result]:
    """The command line by itself."""
    return lambda *arguments, **more: CliRunner().invoke(app, list(arguments), **more)
