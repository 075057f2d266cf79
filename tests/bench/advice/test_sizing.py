"""What `gpuops size` says beside published measurements, and beside measured pairs where `GAVEL=DIR` names them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean

import pytest

from gpuops.model.devices.shared_gpu import ObservedPair
from tests.bench.advice.sizing import ERRORS, busy_by, errors_on_unknown, measured_pairs, run, size_forecast
from tests.bench.advice.sizing_gpu import measured_gpu, measured_gpus, table


@pytest.mark.long
def test_published_measurements_are_met_within_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAVEL", raising=False)
    published, *on_gpus, pairs = run()
    assert [figure.what for figure in published.figures if figure.broken] == []
    assert sum(figure.budget is not None for figure in published.figures) == 5
    assert pairs.figures == (), "not run without its data"
    assert len(on_gpus) == len(measured_gpus()) > 1
    assert [figure.what for gpu in on_gpus for figure in gpu.figures if figure.broken] == []


def test_the_busy_share_is_that_by_which_it_is_told() -> None:
    busy = busy_by(lambda share: size_forecast(share, 8)["slowdown"], 4.0)
    assert size_forecast(busy, 8)["slowdown"] == pytest.approx(4.0)


def test_a_pair_is_read_once_and_what_was_not_run_is_none() -> None:
    of_gpu = {
        "('a', 1)": {"null": 10.0, "('a', 1)": [5.0, 5.0], "('b', 1)": [8.0, 1.0], "('c', 1)": [0.0, 0.0]},
        "('b', 1)": {"null": 2.0, "('a', 1)": [1.0, 8.0]},
        "('c', 1)": {"null": 1.0, "('a', 1)": [0.0, 0.0]},
        "('a', 2)": {"null": 20.0, "('a', 2)": [10.0, 10.0]},
    }
    speeds = {pair.names: pair.speeds for pair in measured_pairs(of_gpu)}
    assert speeds == {("('a', 1)", "('a', 1)"): (0.5, 0.5), ("('a', 1)", "('b', 1)"): (0.8, 0.5)}


@pytest.mark.parametrize("gpu", ERRORS)
def test_measured_pairs_that_a_fit_does_not_know(gpu: str) -> None:
    folder = os.environ.get("GAVEL")
    if not folder:
        pytest.skip("needs the data of measured pairs: GAVEL=DIR")
    text = (Path(folder) / "physical_cluster_throughputs.json").read_text(encoding="utf-8")
    pairs: list[ObservedPair] = measured_pairs(json.loads(text)[gpu])
    assert len(pairs) > 300
    assert mean(errors_on_unknown(pairs, 0)) <= ERRORS[gpu]


def test_a_process_alone_says_what_those_that_share_are_compared_with() -> None:
    """Alone bursts take a tenth longer than planned; beside another one three times as long, and pauses the same."""
    common = {"burst_ms": 10.0, "shape": "exponential", "kernel_ms": 0.5, "kind": "compute", "seed": 1, "part": "main"}
    alone_record = common | {"busy": [0.5], "processes": [[10, 2.0, 1.0, 2.1, 1.1]]}
    two = common | {"busy": [0.5, 0.5], "processes": [[5, 1.0, 0.6, 1.58, 1.18], [5, 1.0, 0.4, 1.8, 1.2]]}
    mixed = common | {
        "busy": [0.5, 0.1],
        "processes": [[1, 1.0, 0.5, 1.5, 1.0], [1, 1.0, 0.1, 1.1, 0.2]],
        "part": "mixed",
    }
    gpu = measured_gpu({"gpu": "H100, 580.1, 80 GiB", "date": "2026-11-27", "points": [alone_record, two, mixed]})
    [point] = gpu.points
    assert (gpu.name, gpu.driver, point.sharers) == ("H100", "580.1", 2)
    assert point.busy == pytest.approx(0.55 / 1.05)
    assert point.slowdown == pytest.approx((0.5 * 2.38 + 0.5 * 1.0) / 1.05, rel=1e-6)
    assert [mixed_point.slowdown for mixed_point in gpu.mixed] == pytest.approx([1.5, 1.1])
    assert table(gpu).splitlines()[0] == "| busy alone | 2 processes |"


def test_the_table_of_the_readme_is_that_of_the_data() -> None:
    page = (Path(__file__).parents[3] / "gpuops" / "extras" / "sizing" / "README.md").read_text(encoding="utf-8")
    for gpu in measured_gpus():
        assert table(gpu) in page
        assert f"{gpu.name}, driver {gpu.driver}, {gpu.date}" in page
