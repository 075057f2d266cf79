"""The solver is silenced before it can print: HiGHS 1.16 writes its version when it is made."""

from __future__ import annotations

import os

import highspy
import numpy as np
import pytest

from gpuops.plan.queue.batch.column_generation import SolverProgram


class SpeakingHighs(highspy.Highs):
    """Writes its version as HiGHS 1.16 does: when callbacks are enabled, and there is output."""

    def enableCallbacks(self) -> None:
        if self.getOptionValue("output_flag")[1]:
            os.write(1, b"Running HiGHS\n")
        super().enableCallbacks()


@pytest.mark.parametrize("integer", [False, True])
def test_a_solver_that_prints_when_it_is_made_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, integer: bool
) -> None:
    monkeypatch.setattr(highspy, "Highs", SpeakingHighs)
    program = SolverProgram([[(0, 1.0)], [(0, 2.0)]], 1, integer=integer)
    answer = program.solve(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([4.0]))
    assert answer.value == pytest.approx(6.0)
    assert capfd.readouterr() == ("", "")
