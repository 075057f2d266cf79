"""A recorded state: what one version of gpuops left behind, as data, and the simulated vCenter that goes with it.

`record.py` writes such files and `test_recorded_states.py` plays them. A file is JSON, packed with xz, in a folder
named after the commit that wrote it. It holds no pickles and no names of classes: the world is a scenario file and what
`gpuops/sim/scenario/saved_state.py` saved. If the simulator changes that format, convert the old one in `world_of`.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import machine_time, set_ahead
from gpuops.sim.horizon_server import Pod
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.saved_state import restore
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.sim.world import World

FOLDER: Final = Path(__file__).parent
SUFFIX: Final = ".json.xz"
SCENARIO: Final = "recorded"
"""The name under which the world of each state was saved."""
VCENTER_UUID: Final = "5c1d6c3e-8a52-4f3b-9d5e-3f6f0d9a4b11"
GUEST_LOGIN: Final = ("keeper", "of the simulated guests")
MARKER: Final = "gpuops.rotation"


@dataclass(frozen=True, slots=True)
class Command:
    """One command and what it did when the recorded version ran it on this state."""

    words: Sequence[str]
    exit_code: int
    facts: Sequence[str] = ()
    """The part of its JSON document that every later version must show too; see `facts_in`."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """What a killed run left, and what must come of it."""

    version: str
    """The commit that wrote it."""
    name: str
    kind: str
    """`night` or `change`."""
    about: str
    journal: str
    """`sqlite`, `postgresql` or `lost`."""
    scenario: str
    policy: str
    world: dict[str, Any]
    maintenance: Sequence[str]
    """Instance uuids of the VMs whose machines are in maintenance mode at the connection broker."""
    moment: str
    """When the commands below were run."""
    files: dict[str, str]
    """The state directory: path to content in Base64."""
    database: Sequence[str]
    """SQL statements that make the PostgreSQL database."""
    commands: Sequence[Command] = ()
    powers: dict[str, str] = field(default_factory=dict)
    """How each VM is when all commands were run."""
    hosts_in_maintenance: Sequence[str] = ()
    vms_with_marker: Sequence[str] = ()
    """VMs that keep a marker: without a journal one that is as it was loses it ten minutes later."""

    @property
    def has_broker(self) -> bool:
        return bool(yaml.safe_load(self.scenario).get("desktop_pools"))


def write(state: RecordedState) -> None:
    path = FOLDER / state.version / f"{state.name}{SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(json.dumps(asdict(state)).encode(), preset=9 | lzma.PRESET_EXTREME))


def names() -> list[str]:
    """Each recorded state as `COMMIT/NAME`."""
    paths = FOLDER.glob(f"*/*{SUFFIX}")
    return sorted(f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}" for path in paths)


def read(name: str) -> RecordedState:
    """The state of this name, one of `names`."""
    document = json.loads(lzma.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()))
    commands = [Command(**command) for command in document.pop("commands")]
    return RecordedState(**document, commands=commands)


def new_world(scenario: str) -> World:
    """The vCenter that a scenario file declares, with the uuid that all recorded journals name."""
    world = build_declared(ScenarioFile.of(yaml.safe_load(scenario)))
    world.get("ServiceInstance").instance_uuid = VCENTER_UUID
    return world


def world_of(state: RecordedState) -> World:
    world = new_world(state.scenario)
    restore(world, SCENARIO, 0, state.world)
    return world


def set_clock(moment: datetime) -> None:
    """From now on gpuops believes that it is this moment."""
    set_ahead(moment - machine_time())


@contextmanager
def serving(world: World, folder: Path, *, broker: bool) -> Iterator[tuple[Path, Pod | None]]:
    """Serves the world; yields the ready file for `--vcenter sim@FILE`, and the pod if there is a connection broker."""
    with SimServer(world) as server:
        pod = server.serve_horizon().pod if broker else None
        sim_client.write(folder / "ready.json", sim_client.of(server))
        yield folder / "ready.json", pod


def unpack(state: RecordedState, state_dir: Path) -> None:
    """Makes the state directory as the recorded run left it."""
    state_dir.mkdir(mode=0o700)
    for name, content in state.files.items():
        path = state_dir / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(content))


@contextmanager
def open_state(state: RecordedState, folder: Path) -> Iterator[Opened]:
    """Puts the state directory and the policy into `folder` and serves the vCenter, all as the recorded run left it."""
    unpack(state, folder / "state")
    (folder / "policy.yaml").write_text(state.policy, encoding="utf-8")
    world = world_of(state)
    with serving(world, folder, broker=state.has_broker) as (ready, pod):
        if pod is not None:
            pod.maintenance.update(state.maintenance)
        set_clock(datetime.fromisoformat(state.moment))
        yield Opened(world, pod, ready, folder)


@dataclass(frozen=True)
class Opened:
    """A recorded state whose vCenter answers."""

    world: World
    pod: Pod | None
    ready: Path
    folder: Path

    def run(self, words: Sequence[str]) -> Command:
        """Runs a command of gpuops in this process. The words may hold `{policy}`."""
        full = [word.format(policy=self.folder / "policy.yaml") for word in words]
        result = CliRunner().invoke(app, [*full, "--vcenter", f"sim@{self.ready}"])
        print(result.output)
        is_document = "json" in words and result.exit_code in (0, 4)
        facts = facts_in(json.loads(result.stdout)) if is_document else []
        return Command(list(words), result.exit_code, facts)

    @property
    def powers(self) -> dict[str, str]:
        with self.world.lock:
            return {vm.name: vm.state.power.value for vm in self.world.by_type("VirtualMachine")}

    @property
    def vms_with_marker(self) -> set[str]:
        """Names of the VMs that carry a marker of a night."""
        key = next((key for key, field in self.world.custom_fields.fields.items() if field.name == MARKER), None)
        return {vm.name for vm in self.world.by_type("VirtualMachine") if vm.attributes.get(key)}

    @property
    def hosts_in_maintenance(self) -> list[str]:
        hosts = self.world.by_type("HostSystem")
        return sorted(host.display_name for host in hosts if host.state.in_maintenance)


def facts_in(document: dict[str, Any]) -> list[str]:
    """What a document of `--output json` says of the past, in keys that its schema promises."""
    match document["kind"]:
        case "rotation-status":
            return sorted(f"{vm['name']} {vm['whereabouts']}" for vm in document["vms"])
        case "history":
            nights = [f"{night['night']} took {night['desktops_taken']}" for night in document["nights"]]
            return [*nights, f"{len(document['changes'])} changes"]
        case "rotate-audit":
            return [
                f"whole {document['whole']}",
                *(f"{vcenter['good_records']} records" for vcenter in document["vcenters"]),
            ]
        case "change-status":
            return sorted(str(document.get("verb")).split())
        case _:
            return []


def load_database(url: str, statements: Sequence[str]) -> None:
    """Makes the recorded tables in a new PostgreSQL database."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
