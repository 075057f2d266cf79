"""The command line against a simulated vCenter, with no configuration of this machine in the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import ready_file
from tests.cli.aside import Aside


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and none of the variables that say something of a connection."""
    return new_home(tmp_path / "home", monkeypatch)


@pytest.fixture(scope="session")
def saved_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inventory of the scenario `lab`, as `--save` wrote it. Tests only read it; one that changes it, a copy."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as monkeypatch:
        new_home(folder / "home", monkeypatch)
        path = folder / "lab.json"
        result = CliRunner().invoke(app, ["inventory", "--vcenter", "sim:lab", "--save", str(path)])
    assert result.exit_code == 0, result.output
    path.chmod(0o400)
    return path


def new_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the folder and names it as the home, in an environment that says nothing of a connection."""
    families = ("GPUOPS_", "VMWARE_", "GOVC_", "XDG_", "CREDENTIALS_", "REQUESTS_")
    for name in [name for name in os.environ if name.startswith(families)]:
        monkeypatch.delenv(name)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@dataclass(frozen=True)
class Lab:
    """A served simulated vCenter and the command line pointed at it."""

    server: SimServer
    ready: Path
    aside: Aside

    def run(self, *arguments: str, **more: Any) -> Result:
        """What the command says; what it advises is played in a copy."""
        result = CliRunner().invoke(app, [*arguments, "--vcenter", f"sim@{self.ready}"], **more)
        self.aside.advised(arguments, result.exit_code, f"{result.stdout}\n{result.stderr}")
        return result

    @property
    def effects(self) -> list[str]:
        """Every applied effect, as `Method name`."""
        return [f"{entry.method} {entry.name}" for entry in self.server.world.ledger]


@contextmanager
def lab_on(server: SimServer, folder: Path, home: Path) -> Iterator[Lab]:
    """The command line pointed at this server. Whatever its commands advise gets somewhere."""
    path = folder / "ready.json"
    ready_file.write(path, ready_file.of(server))
    lab = Lab(server, path, Aside(server, home))
    yield lab
    assert lab.aside.wrong == []


@pytest.fixture
def lab(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    """The scenario `lab`."""
    with start("lab") as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


@pytest.fixture
def gpuops(clean: Path) -> Iterator[Callable[..., Result]]:
    """The command line by itself. Whatever it advises in a world of its own gets somewhere."""
    aside = Aside(None, clean)

    def run(*arguments: str, **more: Any) -> Result:
        result = CliRunner().invoke(app, list(arguments), **more)
        aside.advised(arguments, result.exit_code, f"{result.stdout}\n{result.stderr}")
        return result

    yield run
    assert aside.wrong == []
