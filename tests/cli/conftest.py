"""The command line against a simulated vCenter, with no configuration of this machine in the way."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.console import output
from gpuops.report.document import ErrorDocument
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import sim_client
from tests.cli.aside import Aside
from tests.document_schemas import misfits, read_whole

LAB_POLICY: Final = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and none of the variables that say something of a connection."""
    return new_home(tmp_path / "home", monkeypatch)


@pytest.fixture(autouse=True)
def documents_fit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every document that a command prints, or would print with `--output json`, is as its published schema says."""
    wrong: list[str] = []
    show, show_document = output.show, output.show_document

    def checked_show(text: Any, document: Any, **options: Any) -> None:
        whole = read_whole(document)
        wrong.extend(misfits(whole))
        show(text, whole, **options)

    def checked_error(document: Any) -> None:
        wrong.extend(misfits(document) if isinstance(document, ErrorDocument) else ())
        show_document(document)

    monkeypatch.setattr(output, "show", checked_show)
    monkeypatch.setattr(output, "show_document", checked_error)
    yield
    assert wrong == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Tests that run in the background have SIGINT ignored, under nohup SIGHUP, which what they start inherits."""
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hang_up)


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
    """Makes the folder and names it as the home, in an environment that says nothing of a connection.

    The time of a simulated vCenter that a command starts is stepped.
    """
    families = ("GPUOPS_", "VMWARE_", "GOVC_", "XDG_", "CREDENTIALS_", "REQUESTS_")
    for name in [name for name in os.environ if name.startswith(families)]:
        monkeypatch.delenv(name)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUOPS_SIM_CLOCK", "stepped")
    return home


@dataclass(frozen=True)
class Lab:
    """A served simulated vCenter and the command line pointed at it."""

    server: SimServer
    ready: Path
    aside: Aside

    def run(self, *arguments: str, **options: Any) -> Result:
        """What the command says; what it advises is played in a copy."""
        result = CliRunner().invoke(app, [*arguments, "--vcenter", f"sim@{self.ready}"], **options)
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
    sim_client.write(path, sim_client.of(server))
    lab = Lab(server, path, Aside(server, home))
    yield lab
    assert lab.aside.wrong == []


@pytest.fixture
def lab(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    """The scenario `lab`."""
    with start("lab", clock="stepped") as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


@pytest.fixture
def after_a_night(lab: Lab) -> Lab:
    """The scenario `lab` after a night and its morning: of one server, for its clock begins anew with another."""
    for half in ("night", "day"):
        assert lab.run("rotate", half, "--policy", LAB_POLICY, "--yes").exit_code == 0
    return lab


@pytest.fixture(scope="session")
def saved_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`home` and `lab.json`: the home in which a night of the scenario `lab` began, and its vCenter after that.

    Tests only copy them.
    """
    folder = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as monkeypatch:
        new_home(folder / "home", monkeypatch)
        with start("lab", clock="stepped", state=folder / "lab.json") as server:
            sim_client.write(folder / "ready.json", sim_client.of(server))
            words = ["rotate", "night", "--policy", LAB_POLICY, "--yes", "--vcenter", f"sim@{folder / 'ready.json'}"]
            result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def lab_by_night(saved_night: Path, tmp_path: Path, clean: Path) -> Iterator[Lab]:
    """The scenario `lab` after a night of its policy has begun, and the home with the journal of that night."""
    shutil.copytree(saved_night / "home", clean, dirs_exist_ok=True)
    state = Path(shutil.copy(saved_night / "lab.json", tmp_path / "lab.json"))
    with start("lab", clock="stepped", state=state) as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


@pytest.fixture
def gpuops(clean: Path) -> Iterator[Callable[..., Result]]:
    """The command line by itself. Whatever it advises in a world of its own gets somewhere."""
    aside = Aside(None, clean)

    def run(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(app, list(arguments), **options)
        aside.advised(arguments, result.exit_code, f"{result.stdout}\n{result.stderr}")
        return result

    yield run
    assert aside.wrong == []
