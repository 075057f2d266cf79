"""Linear and integer programs by HiGHS (extra `optimize`); the only module that imports the solver.

`column_generation.py` calls it. A call is a pure function of its input: one thread, a fixed seed, and
limits on work instead of on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


_RELATIVE_SLACK: Final = 1e-3
_MOST_NODES: Final = 300
_AT_LEAST: Final = 50
"""Iterations that are counted for every call: the rest of a small program takes as long."""


def installed() -> bool:
    """Whether the solver is installed and can be loaded."""
    try:
        import_module("highspy")
    except ImportError:  # also where a library that it was built for is not there
        return False
    return True


def _silent_solver() -> Any:
    """A solver that prints nothing. Since HiGHS 1.16 it prints its version when callbacks are enabled, which its
    constructor does."""
    import highspy

    class SilentHighs(highspy.Highs):  # type: ignore[misc]  # highspy is not read by mypy
        def enableCallbacks(self) -> None:  # noqa: N802  # the name is HiGHS's
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return SilentHighs()


@dataclass(frozen=True, slots=True)
class SolverAnswer:
    """The best point that was found, its value, a bound on any value, and the dual price of each row.

    Where the solver gave up, the point is zero and the bound is infinite.
    """

    point: Floats
    value: float
    bound: float
    prices: Floats
    work: int
    """Simplex iterations: the same on every machine, as seconds are not."""


class SolverProgram:
    """Maximise `gains * x` with `rows * x <= limits` and `0 <= x <= most`; each call of `solve` brings the figures.

    `columns`: for each variable its coefficients as (row, coefficient). An integer program may stop `slack` short of
    the best.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[tuple[int, float]]],
        rows: int,
        *,
        integer: bool,
        slack: float = 0.0,
    ) -> None:
        import highspy
        import numpy as np

        self._np = np
        self.size, self.rows = len(columns), rows
        self._solver = _silent_solver()
        for option, setting in (("threads", 1), ("random_seed", 0)):
            self._solver.setOptionValue(option, setting)
        if integer:
            self._solver.setOptionValue("mip_rel_gap", _RELATIVE_SLACK)
            self._solver.setOptionValue("mip_abs_gap", slack)
            self._solver.setOptionValue("mip_max_nodes", _MOST_NODES)
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.size, rows
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.zeros(self.size)
        model.col_lower_ = np.zeros(self.size)
        model.col_upper_ = np.full(self.size, highspy.kHighsInf)
        model.row_lower_ = np.full(rows, -highspy.kHighsInf)
        model.row_upper_ = np.zeros(rows)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.cumsum([0, *map(len, columns)]).astype(np.int32)
        model.a_matrix_.index_ = np.array([row for column in columns for row, _ in column], dtype=np.int32)
        model.a_matrix_.value_ = np.array(
            [coefficient for column in columns for _, coefficient in column], dtype=np.float64
        )
        if integer:
            model.integrality_ = [highspy.HighsVarType.kInteger] * self.size
        self._integer = integer
        self._passed = self._solver.passModel(model) != highspy.HighsStatus.kError

    def solve(self, gains: Floats, most: Floats, limits: Floats) -> SolverAnswer:
        """The best point for these gains, upper limits of the variables and limits of the rows."""
        np, solver = self._np, self._solver
        if not self._passed:
            return self._given_up(len(limits))
        rows = np.arange(len(limits), dtype=np.int32)
        numbers = np.arange(self.size, dtype=np.int32)
        solver.changeColsCost(self.size, numbers, np.asarray(gains, dtype=np.float64))
        solver.changeColsBounds(self.size, numbers, np.zeros(self.size), np.asarray(most, dtype=np.float64))
        solver.changeRowsBounds(len(rows), rows, np.full(len(rows), -np.inf), np.asarray(limits, dtype=np.float64))
        if not self._found_answer():
            return self._given_up(len(limits))
        solution, solver_info = solver.getSolution(), solver.getInfo()
        point = np.array(solution.col_value) if len(solution.col_value) else np.zeros(self.size)
        objective = float(point @ gains)
        bound = float(solver_info.mip_dual_bound) if self._integer else objective
        prices = np.zeros(0) if self._integer else np.maximum(0.0, np.array(solution.row_dual))
        return SolverAnswer(
            point, objective, max(objective, bound), prices, _AT_LEAST + int(solver_info.simplex_iteration_count)
        )

    def _found_answer(self) -> bool:
        """Whether the solver ended with an answer: the best one, or for integers one at the limit of the search."""
        import highspy

        if self._solver.run() == highspy.HighsStatus.kError:
            return False
        ended = self._solver.getModelStatus()
        at_limit = self._integer and ended == highspy.HighsModelStatus.kSolutionLimit
        return bool(at_limit or ended == highspy.HighsModelStatus.kOptimal)

    def _given_up(self, rows: int) -> SolverAnswer:
        """Return an answer for a failed solver call, which places nothing and has an infinite bound."""
        np = self._np
        return SolverAnswer(np.zeros(self.size), 0.0, float("inf"), np.zeros(0 if self._integer else rows), _AT_LEAST)
