"""The health of a server, by how the script that asks it ended."""

from __future__ import annotations

import pytest

from gpuops.execute.site.guest_work import failure_reason
from gpuops.extras.lending.pool_guests import _health
from gpuops.extras.lending.pool_members import ServerHealth
from gpuops.model.guests.guest import CommandEnd


@pytest.mark.parametrize(
    ("exit_code", "error", "is_dead"),
    [
        (0, "", False),
        (0, "its clock went back meanwhile", False),
        (1, "it ended with exit code 1", True),
        (2, "it ended with exit code 2", False),
        (137, "it ended with exit code 137", False),
        (None, "it still ran after 120 s, and was ended", False),
    ],
)
def test_only_a_hook_that_failed_shows_that_its_server_is_dead(
    exit_code: int | None, error: str, is_dead: bool
) -> None:
    end = CommandEnd("gpu-01", 1.0, exit_code, "lease a1 0 10\nno driver\n", error)
    health = _health(end, failure_reason(end))
    why = f"{error}: no driver" if error else ""
    assert health == ServerHealth("gpu-01", {} if error else {("a1", 0): 10}, why, is_dead)
