"""Two answers about the health of one GPU, joined."""

from __future__ import annotations

import pytest

from gpuops.model.devices.gpu import HEALTHY, GpuHealth, RecoveryAction

PENDING, RESET = GpuHealth(is_row_remap_pending=True), GpuHealth(recovery_action=RecoveryAction.RESET)


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (HEALTHY, HEALTHY, HEALTHY),
        (GpuHealth(is_row_remap_pending=False), PENDING, PENDING),
        (HEALTHY, GpuHealth(is_row_remap_pending=False), GpuHealth(is_row_remap_pending=False)),
        (GpuHealth(recovery_action=RecoveryAction.NONE), RESET, RESET),
        (GpuHealth(recovery_action=RecoveryAction.NONE), HEALTHY, GpuHealth(recovery_action=RecoveryAction.NONE)),
    ],
)
def test_the_worse_report_counts(first: GpuHealth, second: GpuHealth, joined: GpuHealth) -> None:
    assert (first.merge(second), second.merge(first)) == (joined, joined)
