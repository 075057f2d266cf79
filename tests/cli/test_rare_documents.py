"""Documents that tests of commands show rarely: each is as its published schema says (the fixture `documents_fit`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from typer.testing import Result

from gpuops.extras.clusters.launch import LaunchPlan
from gpuops.extras.clusters.run_request import AllReduceProgram, BenchResult
from gpuops.extras.clusters.view import ClusterBenchDocument, run_document
from gpuops.extras.diagnosis.learning import TrainingOutcome
from gpuops.extras.diagnosis.model import ForestSettings
from gpuops.extras.diagnosis.view import DiagnoseTrainDocument
from gpuops.extras.fleet.cli import RunnerAskedDocument, RunnerInitDocument, RunnerStatusDocument
from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.nights.runners import Half, QueueStatus, RunnerSeen
from gpuops.plan.core.abandonment import Abandonment
from gpuops.report.document import AnyDocument, kind_of
from gpuops.report.hosts.change_view import abandonment_document
from tests.document_schemas import misfits

NOW: Final = datetime(2026, 11, 28, 22, tzinfo=UTC)
MODEL: Final[Any] = SimpleNamespace(cases=3, corrections=(), right=0.9)


@pytest.mark.parametrize(
    ("words", "exit_code", "kind"),
    [
        (("sim", "faults"), 0, "faults"),
        (("host", "mig", "on", "--host", "esx-01.lab", "--dry-run", "--vcenter", "sim:lab"), 3, "mig-set-on"),
        (("host", "mig", "off", "--host", "esx-01.lab", "--dry-run", "--vcenter", "sim:lab"), 3, "mig-set-off"),
        (("defrag", "--yes", "--vcenter", "sim:scattered"), 0, "defrag-execute"),
    ],
)
def test_a_command_prints_it(
    gpuops: Callable[..., Result], tmp_path: Path, words: tuple[str, ...], exit_code: int, kind: str
) -> None:
    shell = ("--host-shell", "ssh", "--ssh-known-hosts", str(tmp_path / "missing")) if words[1] == "mig" else ()
    result = gpuops(*words, *shell, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)["kind"]) == (exit_code, kind)


@pytest.mark.parametrize(
    "document",
    [
        abandonment_document(Abandonment((GivenUp(Thing.HOST, "host-7", "uuid", "esx-07", "", NOW),), ("means",))),
        RunnerStatusDocument.made_of(QueueStatus((RunnerSeen(1, NOW),), ())),
        RunnerInitDocument(made=True, before=None, revision="0001"),
        RunnerAskedDocument("prod", "nightly", Half.NIGHT, asked=True),
        run_document("train", LaunchPlan(None), None, 3),
        ClusterBenchDocument.made_of(BenchResult("train", AllReduceProgram.MPI4PY, (), simulated=True)),
        DiagnoseTrainDocument.made_of(TrainingOutcome(MODEL, True, ((ForestSettings(), 0.9),), None, 0.9)),
    ],
    ids=kind_of,
)
def test_a_document_of_a_command_that_needs_other_machines_fits(document: AnyDocument) -> None:
    assert misfits(document) == []
