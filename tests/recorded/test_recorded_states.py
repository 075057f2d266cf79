"""What each recorded version left behind is shown, finished and brought back by this version, with the same exit codes.

A state that fails here fails for users who upgrade in an open night: repair the code that reads it, not the state.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from gpuops.execute.journal.record import Kind, Recorded, load_step
from tests.cli.conftest import new_home
from tests.recorded import states
from tests.recorded.states import GUEST_LOGIN, RecordedState

NAMES: Final = states.names()
VERSIONS: Final = sorted({name.partition("/")[0] for name in NAMES})
NOT_RECORDED: Final = {
    "ConfigureMig": "a host's own nvidia-smi makes that change, over SSH; vCenter has no call for it",
    **dict.fromkeys(
        ("DefineAttribute", "SetRole"),
        "it is a setting of vCenter outside nights and changes of hosts; test_killed_calls.py cuts it off",
    ),
    **dict.fromkeys(
        ("CloneVm", "CreateVm"),
        "it makes a VM, and recorded worlds hold declared VMs; test_creations_killed.py cuts it off",
    ),
    **dict.fromkeys(
        ("PowerOffForRemoval", "RemoveVm"),
        "it removes a VM that gpuops made, and recorded worlds hold declared VMs; test_removals_killed.py cuts it off",
    ),
    "RunClusterProgram": "its guests run real programs, whose processes no state holds; test_cluster_run_killed.py",
}
"""Kinds of step that no recorded journal holds, and why."""

QUICK: Final = frozenset(
    [
        "night-suspend-sent",
        "night-suspend-done",
        "night-start-done",
        "night-all-but-end",
        "day-stop-intent",
        "day-resume-done",
        "lost-whole",
        "lost-restored",
        "pg-suspend-task",
        "pg-books",
        "books",
        "gate-closed",
        "hook",
        "kept-off-drs",
        "left-out",
        "given-up",
        "checkpoint",
        "lock-vm",
        "watch",
        "moved",
        "powered-off",
        "change-moved",
        "change-reboot-task",
        "change-back",
        "pg-change-rebooted",
        "lost-change",
        "change-modes",
        "defrag",
        "attach",
    ]
)
"""The stories that `make test` plays too: one for each kind of journal, book and step, and for each kind of end."""


def _parameter(name: str) -> Any:
    is_quick = name.partition("/")[2] in QUICK
    return pytest.param(name, marks=[] if is_quick else [pytest.mark.long])


@pytest.mark.parametrize("name", [_parameter(name) for name in NAMES])
def test_a_state_of_a_recorded_version_comes_to_the_same_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    state = states.read(name)
    enter(state, tmp_path, monkeypatch, request)
    with states.open_state(state, tmp_path) as opened:
        for command in state.commands:
            assert opened.run(command.words) == command, f"{name}: {state.about}"
        assert opened.powers == state.powers
        assert opened.hosts_in_maintenance == state.hosts_in_maintenance
        assert opened.vms_with_marker == set(state.vms_with_marker)
        assert opened.pod is None or opened.pod.maintenance == set()
        assert opened.world.bugs == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_recorded_enough(version: str) -> None:
    recorded = [states.read(name) for name in NAMES if name.startswith(f"{version}/")]
    assert {state.version for state in recorded} == {version}
    kinds = Counter(state.kind for state in recorded)
    assert (kinds["night"] >= 30, kinds["change"] >= 20) == (True, True), kinds
    journals = Counter((state.kind, state.journal) for state in recorded)
    assert min(journals[kind, journal] for kind in kinds for journal in ("sqlite", "postgresql", "lost")) > 0, journals
    typed = Counter(tuple(command.words[:2]) for state in recorded for command in state.commands)
    for command in (
        ("job", "list"),
        ("pool", "show"),
        ("observe", "status"),
        ("rotate", "restore"),
        ("change", "abort"),
    ):
        assert typed[command] > 0, f"gpuops {' '.join(command)} is never typed"


def test_each_kind_of_record_and_of_step_is_in_a_recorded_journal(tmp_path: Path) -> None:
    kinds: set[Kind] = set()
    steps: set[type] = set()
    for number, state in enumerate(map(states.read, NAMES)):
        if state.journal != "sqlite":
            continue
        for kind, body in journal_records(state, tmp_path / str(number)):
            kinds.add(kind)
            if kind is Kind.INTENT:
                steps.add(type(load_step(body["step"])))
    assert kinds == set(Kind)
    assert {kind.__name__ for kind in set(get_args(Recorded)) - steps} == set(NOT_RECORDED)


def journal_records(state: RecordedState, folder: Path) -> Iterator[tuple[Kind, Any]]:
    """Kind and body of each record of its SQLite journal."""
    states.unpack(state, folder)
    with closing(sqlite3.connect(folder / "journal.sqlite")) as connection:
        for kind, body in connection.execute("SELECT kind, body FROM journal"):
            yield Kind(kind), json.loads(body)


def enter(state: RecordedState, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """An environment in which commands of gpuops find the recorded state in `folder`."""
    new_home(folder / "home", monkeypatch)
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", GUEST_LOGIN[0])
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD", GUEST_LOGIN[1])
    if state.database:
        url = request.getfixturevalue("postgresql").database()
        states.load_database(url, state.database)
        monkeypatch.setenv("GPUOPS_JOURNAL_URL", url)
