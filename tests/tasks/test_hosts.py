"""What hosts do with their GPUs, as tasks: predicted, done, and nothing the second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuops.errors import HostNotFound
from gpuops.tasks.answer import Answer
from gpuops.tasks.hosts import host_gpu_scheduler, host_graphics_mode, host_passthrough
from tests.tasks.conftest import Lab

Set = Callable[..., Answer]
CASES = [
    (host_gpu_scheduler, {"policy": "equal-share", "time_slice": "2ms", "host": "esx-01.lab", "gpu": ["0000:d8:00.0"]}),
    (host_graphics_mode, {"assignment": "performance", "host": "esx-02.lab", "vgpu_mode": None}),
    (host_passthrough, {"on": False, "device": ["0000:d8:00.0"], "host": "esx-02.lab"}),
]


@pytest.mark.parametrize(("task", "options"), CASES)
def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab, task: Set, options: dict[str, Any]) -> None:
    foreseen = task(lab.said, options, apply=False)
    assert lab.effects == []
    done = task(lab.said, options, apply=True)
    assert (foreseen.exit_code, done.exit_code) == (0, 0), done.message
    assert foreseen.result["changed"]
    same = ("changed", "diff", "because", "afterwards", "reasons")
    assert {key: done.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    assert done.result["diff"][0]["before"] != done.result["diff"][0]["after"]
    effects = lab.effects
    assert effects
    again = task(lab.said, options, apply=True)
    assert (again.result["changed"], again.result["diff"], lab.effects) == (False, [], effects)


def test_a_refusal_has_every_reason(lab: Lab) -> None:
    answer = host_passthrough(lab.said, {"on": True, "device": ["0000:d8:00.0"], "host": "esx-01.lab"}, apply=True)
    assert (answer.exit_code, answer.result["changed"], answer.result["diff"]) == (3, False, [])
    assert "vdi-01" in answer.message
    assert lab.effects == []


def test_a_host_that_is_not_there_is_named(lab: Lab) -> None:
    with pytest.raises(HostNotFound, match="esx-99"):
        host_graphics_mode(lab.said, {"assignment": "performance", "host": "esx-99"}, apply=True)
