"""Words of the journal that are compared as they are: kinds of runs and records, states, and names of steps."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import gpuops
from gpuops.execute.journal.record import RETURN_KINDS, IntentState, Kind
from gpuops.execute.past.past_events import _COMMANDS
from gpuops.execute.runs import CHANGE, RunKind
from gpuops.model.nights.night_record import Role
from gpuops.model.stored import stored_name
from tests.model.test_stored import modules_with, stored_classes

PACKAGE: Final = Path(gpuops.__file__).parent
RUN_KINDS: Final = [
    "attach", "detach", "giveprofile", "restorescheduler", "rotatemark", "setmig", "setmode", "setpassthrough",
    "setscheduler", "severalvms", "sitehosts", "sitevms",
]  # fmt: skip
"""What journals call the runs of each request, whatever that is called in Python."""
READERS: Final = ("execute/journal", "execute/past", "plan/rotation")
"""Folders that compare names of steps."""
SYSTEMD_SETTINGS: Final = {"ExecStart", "OnCalendar", "OnUnitActiveSec", "OnUnitInactiveSec"}
"""Settings of systemd units that `plan/rotation/installed_calls.py` reads: written like names of steps."""


def test_the_runs_of_a_request_keep_their_kind() -> None:
    members = [member for module in modules_with("run_kind: ClassVar[str] =") for member in vars(module).values()]
    requests = {member for member in members if isinstance(member, type) and "run_kind" in vars(member)}
    kinds = sorted(vars(request)["run_kind"] for request in requests)
    assert kinds == RUN_KINDS
    assert _COMMANDS.keys() <= set(kinds), "the history says these in words of its own"


def test_the_words_of_records_stay() -> None:
    assert [*Kind] == [
        "begun", "original", "intent", "submitted", "settled", "returned", "skip", "given_up", "ended", "checkpoint",
    ]  # fmt: skip
    assert [*IntentState] == ["intent", "submitted", "done", "failed", "unknown"]
    assert [*RunKind] == ["rotate night", "rotate watch", "rotate day", "rotate restore"]
    assert [*Role] == ["desktop", "desktop-off", "ml"]
    assert (CHANGE, *RETURN_KINDS) == ("change", "rotate day", "rotate restore")


def test_the_word_of_a_cluster_stays() -> None:
    from gpuops.extras.clusters.run import CLUSTER

    assert CLUSTER == "cluster"


def test_every_name_of_a_step_that_a_reader_compares_is_stored() -> None:
    stored = {stored_name(kind) for kind in stored_classes()}
    compared = {
        node.value
        for folder in READERS
        for file in (PACKAGE / folder).rglob("*.py")
        if file.name != "__init__.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"(?:[A-Z][a-z]+){2,}", node.value)
    } - SYSTEMD_SETTINGS
    assert compared <= stored
    assert {"SuspendVm", "PowerOnVm", "ResumeVm", "CloseGate"} <= compared
