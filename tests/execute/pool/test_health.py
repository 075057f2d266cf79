"""The health of a server, by how the script that asks it ended."""

from __future__ import annotations

import pytest

from gpuops.execute.pool.guests import _health
from gpuops.model.guests.guest_command import CommandEnd
from gpuops.model.workloads.remote_gpu import ServedShare, ServerCondition


@pytest.mark.parametrize(
    ("exit_code", "error", "condition"),
    [
        (0, "", ServerCondition.SERVES),
        (0, "its clock went back meanwhile", ServerCondition.UNKNOWN),
        (1, "it ended with exit code 1", ServerCondition.DEAD),
        (2, "it ended with exit code 2", ServerCondition.UNKNOWN),
        (137, "it ended with exit code 137", ServerCondition.UNKNOWN),
        (None, "it still ran after 120 s, and was ended", ServerCondition.UNKNOWN),
    ],
)
def test_only_a_hook_that_failed_shows_that_its_server_is_dead(
    exit_code: int | None, error: str, condition: ServerCondition
) -> None:
    health = _health(CommandEnd("gpu-01", 1.0, exit_code, "lease a1 0 10\nno driver\n", error))
    assert (health.server, health.condition) == ("gpu-01", condition)
    assert health.why == (f"{error}: no driver" if error else "")
    assert health.shares == (() if error else (ServedShare("a1", 0, 10),))
