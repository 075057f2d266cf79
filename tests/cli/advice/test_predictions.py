"""`gpuops doctor --predictions` as typed: what the journal tells, in words and for programs, and its exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import Result

from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.model.prediction import Compared, Misprediction, Predicted, Prediction
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm

Gpuops = Callable[..., Result]
NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
WRONG = Misprediction(Predicted.GPU, "0000:3b:00.0", "0000:5e:00.0", {"profiles": "nvidia_a40-8q"})
LIST = ("doctor", "--predictions")


@pytest.fixture
def one_wrong(clean: Path) -> None:
    before = Inventory("vc-uuid", "8.0.3.0", NOW, {}, {}, {}, {})
    with closing(Journal.open(default_state_dir(), "vc-uuid", lambda: NOW)) as journal:
        run = journal.begin("attach")
        for vm, compared in (
            ("vm-1", Compared((WRONG,))),
            ("vm-2", Compared()),
            ("vm-3", Compared((), "it was a guess")),
        ):
            op_id = journal.intend(run, PowerOnVm(vm), before, Prediction(True, host="host-1"))
            journal.settled(op_id, IntentState.DONE, compared=compared)
        journal.end(run)


@pytest.mark.long
@pytest.mark.usefixtures("one_wrong")
def test_each_with_its_facts(gpuops: Gpuops) -> None:
    told = gpuops(*LIST)
    assert told.exit_code == 0
    assert told.stdout.splitlines() == [
        "gpu        2026-11-20 22:00 attach: start vm-1",
        "           predicted GPU 0000:3b:00.0, found GPU 0000:5e:00.0",
        "           profiles  nvidia_a40-8q",
        "cannot say: 1 x it was a guess",
        "1 misprediction; 1 step as predicted, 1 of which it cannot be said",
        "next: gpuops help predictions says what each of them means",
    ]
    assert gpuops(*LIST, "--strict").exit_code == 3
    document = json.loads(gpuops(*LIST, "--output", "json").stdout)
    assert (document["kind"], document["right"]) == ("predictions", 1)
    [one] = document["mispredictions"]
    assert (one["what"], one["ref"], one["host"], one["facts"]) == ("gpu", "vm-1", "host-1", WRONG.facts)
    history = gpuops("history").stdout
    assert "1 misprediction: gpuops doctor --predictions lists them" in history


def test_none_yet(gpuops: Gpuops) -> None:
    told = gpuops(*LIST, "--strict")
    assert (told.exit_code, told.stdout) == (
        0,
        "no step was predicted yet: each of a change, a night or a return is\n",
    )


def test_it_is_about_what_was_done(gpuops: Gpuops) -> None:
    told = gpuops(*LIST, "--host", "esx-01.lab")
    assert told.exit_code == 2
    assert "goes with no host, cluster, --roles or --policy" in told.stderr


@pytest.mark.usefixtures("one_wrong")
def test_the_table_of_assumptions_names_what_the_journal_contradicts(gpuops: Gpuops) -> None:
    shown = gpuops("doctor", "--assumptions")
    assert shown.exit_code == 0
    assert re.search(r"^gpu-choice +inferred +contradicted 1 x +In same-size mode", shown.stdout, re.MULTILINE)
    assert re.search(r"^suspended-vm-memory +memory +never contradicted", shown.stdout, re.MULTILINE)
    assert "1 step of this journal went as predicted, 1 did not" in shown.stdout
    assert gpuops("doctor", "--assumptions", "--strict").exit_code == 3
    document = json.loads(gpuops("doctor", "--assumptions", "--output", "json").stdout)
    rows = {row["id"]: row for row in document["assumptions"]}
    assert (rows["gpu-choice"]["contradicted"], rows["clone-options"]["contradicted"]) == (1, None)
    assert document["predicted_steps"] == 2


def test_a_step_with_two_mispredictions_is_one_step(gpuops: Gpuops, clean: Path) -> None:
    before = Inventory("vc-uuid", "8.0.3.0", NOW, {}, {}, {}, {})
    start = Misprediction(Predicted.MIG_START, "slice 0", "slice 4")
    with closing(Journal.open(default_state_dir(), "vc-uuid", lambda: NOW)) as journal:
        run = journal.begin("attach")
        op_id = journal.intend(run, PowerOnVm("vm-1"), before, Prediction(True, host="host-1"))
        journal.settled(op_id, IntentState.DONE, compared=Compared((WRONG, start)))
        journal.end(run)
    shown = gpuops("doctor", "--assumptions").stdout
    assert "0 steps of this journal went as predicted, 1 did not" in shown
    assert re.search(r"^suspended-vm-memory +memory +never contradicted", shown, re.MULTILINE), "a step was tried"
    document = json.loads(gpuops("doctor", "--assumptions", "--output", "json").stdout)
    assert document["predicted_steps"] == 1


def test_both_lists_at_once_are_refused(gpuops: Gpuops) -> None:
    refused = gpuops("doctor", "--assumptions", "--predictions")
    assert (refused.exit_code, refused.stdout) == (2, "")
