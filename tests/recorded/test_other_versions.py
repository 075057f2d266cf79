"""An open night that another version has written in: a later journal is refused, and desktops still come back.

There is no later version to run yet, so these tests add what one could have written to recorded nights.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.execute.journal.record import GENESIS, checksum
from gpuops.plan.rotation.lease_rules import KEY
from tests.recorded import states
from tests.recorded.states import VCENTER_UUID, RecordedState
from tests.recorded.test_recorded_states import enter

NIGHT: Final = "aac4cd0c/night-suspend-task"
UNDER_LOCK: Final = "aac4cd0c/lock-vm"
CHANGE: Final = "aac4cd0c/change-reboot-task"
FROM_MARKERS: Final = "gpuops rotate restore --from-markers --policy FILE"
POLICY: Final = ("--policy", "{policy}")


def append(connection: sqlite3.Connection, kind: str, body: Mapping[str, Any]) -> None:
    """Adds a record to the open run, sealed as gpuops seals it."""
    [(seq, previous)] = connection.execute("SELECT seq, checksum FROM journal_heads").fetchall()
    [(run, at)] = connection.execute("SELECT run, at FROM journal WHERE seq = ?", [seq]).fetchall()
    row = (VCENTER_UUID, seq + 1, run, kind, at, json.dumps(body))
    seal = checksum(previous, *row)
    connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", [*row, seal])
    connection.execute("UPDATE journal_heads SET seq = ?, checksum = ?", [seq + 1, seal])


def later_revision(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE alembic_version SET version_num = '9999'")


def later_schema(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE schema_version SET version = version + 1")


def later_kind(connection: sqlite3.Connection) -> None:
    append(connection, "paused", {"until": "2026-11-03T06:00:00Z"})


def later_step(connection: sqlite3.Connection) -> None:
    body = {"step": {"HibernateVm": {"vm": "vm-1"}}, "seen": "2026-11-02T18:00:00+00:00", "before": {}}
    append(connection, "intent", {"op": "gpuops-later-1", **body})


def later_order(connection: sqlite3.Connection) -> None:
    """The change has a step of a kind that this version lacks."""
    rows = connection.execute("SELECT vcenter, seq, run, kind, at, body FROM journal ORDER BY seq").fetchall()
    seal = GENESIS
    for row in rows:
        changed = (*row[:5], row[5].replace("ConfigureModule", "ConfigurePartitions"))
        seal = checksum(seal, *changed)
        connection.execute("UPDATE journal SET body = ?, checksum = ? WHERE seq = ?", [changed[5], seal, row[1]])
    connection.execute("UPDATE journal_heads SET checksum = ?", [seal])


LATER: Final = [later_revision, later_schema, later_kind, later_step]


class Commands:
    """Commands of this version, typed at a recorded state."""

    def __init__(self, opened: states.Opened) -> None:
        self.opened = opened

    def run(self, *words: str) -> Result:
        full = [*words, "--vcenter", f"sim@{self.opened.ready}"]
        return CliRunner().invoke(app, [word.format(policy=self.opened.folder / "policy.yaml") for word in full])


OpenState = Callable[[str], AbstractContextManager[Commands]]


@pytest.fixture
def open_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> OpenState:
    """Opens a recorded state for commands."""

    @contextmanager
    def open_state(name: str) -> Iterator[Commands]:
        state: RecordedState = states.read(name)
        enter(state, tmp_path, monkeypatch, request)
        with states.open_state(state, tmp_path) as opened:
            yield Commands(opened)

    return open_state


def journal(folder: Path) -> Path:
    return folder / "state" / "journal.sqlite"


def written_by_a_later_version(folder: Path, change: Callable[[sqlite3.Connection], None]) -> None:
    with closing(sqlite3.connect(journal(folder))) as connection, connection:
        change(connection)


def desktops(commands: Commands) -> set[str]:
    """Power states of the desktops."""
    return {power for name, power in commands.opened.powers.items() if name.startswith("vdi-")}


@pytest.mark.parametrize("change", LATER)
def test_a_journal_of_a_later_version_is_refused_with_the_command_that_needs_none(
    change: Callable[[sqlite3.Connection], None], open_commands: OpenState, tmp_path: Path
) -> None:
    with open_commands(NIGHT) as commands:
        written_by_a_later_version(tmp_path, change)
        before = commands.opened.powers
        for words in (("rotate", "night", *POLICY, "--yes"), ("rotate", "resume", "--yes")):
            refused = commands.run(*words)
            hint = "gpuops rotate day --policy FILE" if change is later_kind else FROM_MARKERS
            assert (refused.exit_code, hint in refused.stderr) == (7, True), refused.output
            assert "Traceback" not in refused.output
        assert commands.opened.powers == before
        status = commands.run("rotate", "status", *POLICY)
        reads_all = 0 if change is later_step else 7  # what is away does not depend on that step
        assert (status.exit_code, "vdi-01" in status.stdout) == (reads_all, True), "markers still say who is away"
        back = commands.run("rotate", "restore", "--from-markers", *POLICY, "--yes")
        assert (back.exit_code, desktops(commands)) == (7, {"poweredOn"}), back.output


@pytest.mark.parametrize("change", LATER)
def test_the_morning_of_an_earlier_version_brings_every_desktop_back(
    change: Callable[[sqlite3.Connection], None], open_commands: OpenState, tmp_path: Path
) -> None:
    with open_commands(NIGHT) as commands:
        written_by_a_later_version(tmp_path, change)
        day = commands.run("rotate", "day", *POLICY, "--yes")
        assert (day.exit_code, desktops(commands)) == (7, {"poweredOn"}), day.output
        assert "went by vCenter's markers" in day.stdout.replace("\n", " ")
        with commands.opened.world.lock:
            commands.opened.world.clock.advance(700.0)
        commands.run("rotate", "day", *POLICY, "--yes")
        assert commands.opened.vms_with_marker == set()


def test_a_change_of_hosts_by_a_later_version_is_left_to_it(open_commands: OpenState, tmp_path: Path) -> None:
    with open_commands(CHANGE) as commands:
        written_by_a_later_version(tmp_path, later_order)
        before = commands.opened.powers
        for verb in ("status", "resume", "abort"):
            refused = commands.run("change", verb, *(() if verb == "status" else ("--yes",)))
            assert refused.exit_code == 7, refused.output
            assert "this version cannot read" in refused.stderr
        assert commands.opened.powers == before


# --- two machines with different versions under one lock VM ---


def lock_vm(opened: states.Opened) -> Any:
    [vm] = [vm for vm in opened.world.by_type("VirtualMachine") if vm.name == "gpuops-lock"]
    return vm


def lease_text(opened: states.Opened) -> str:
    """The lease as the lock VM has it."""
    return str(dict(lock_vm(opened).state.extra_config)[KEY])


def written_by_another_machine(opened: states.Opened, **keys: Any) -> str:
    """Writes the lease of a run that is under way, with these keys too; returns its text."""
    with opened.world.lock:
        vm, now = lock_vm(opened), opened.world.clock.now()
        lease = json.loads(lease_text(opened))
        lease |= {"owner": "pid 7 on jump-2", "nonce": "5f" * 8, "epoch": lease["epoch"] + 1}
        lease |= {"expires": (now + timedelta(seconds=150)).isoformat(), **keys}
        vm.state.extra_config = tuple({**dict(vm.state.extra_config), KEY: json.dumps(lease)}.items())
        return json.dumps(lease)


def test_a_lease_with_a_key_of_a_later_version_is_respected(open_commands: OpenState) -> None:
    with open_commands(UNDER_LOCK) as commands:
        text = written_by_another_machine(commands.opened, site="north")
        before = commands.opened.powers
        for words in (("night", *POLICY, "--yes"), ("resume", "--yes")):
            assert commands.run("rotate", *words).exit_code == 6
        assert (commands.opened.powers, lease_text(commands.opened)) == (before, text)
        status = commands.run("rotate", "status", *POLICY)
        assert "jump-2" in status.stdout
        with commands.opened.world.lock:
            commands.opened.world.clock.advance(300.0)
        assert commands.run("rotate", "day", *POLICY, "--yes").exit_code == 0
        assert desktops(commands) == {"poweredOn"}


def test_a_lease_in_a_later_format_stops_a_night_and_no_morning(open_commands: OpenState) -> None:
    with open_commands(UNDER_LOCK) as commands:
        text = written_by_another_machine(commands.opened, format=2)
        before = commands.opened.powers
        night = commands.run("rotate", "night", *POLICY, "--yes")
        assert (night.exit_code, "this gpuops did not write" in night.stderr) == (3, True), night.output
        assert (commands.opened.powers, lease_text(commands.opened)) == (before, text)
        day = commands.run("rotate", "day", *POLICY, "--yes")
        assert desktops(commands) == {"poweredOn"}, day.output
        assert (day.exit_code, lease_text(commands.opened)) == (0, text), day.output
        assert "this machine's lock alone keeps other runs away" in day.stdout.replace("\n", " ")
