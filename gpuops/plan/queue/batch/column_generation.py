"""Solves a batch problem by column generation: looks for patterns worth more than they cost until none is left.

Two programs are solved in turn. A linear program over all known patterns shares the hosts out among them, and prices
VMs and hosts. Each shape's own integer program then looks for a better pattern of one host at these prices. What no
shape can earn at given prices bounds every solution (the Lagrangian bound). `solve.py` calls it for a solution and for
the bound.

`SolverProgram` solves the programs with HiGHS (extra `optimize`), and nothing else imports the solver. A call is a pure
function of its input: one thread, a fixed seed, and limits on work instead of on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gpuops.plan.queue.batch.integer_program import BatchProblem, HostPattern

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_RELATIVE_SLACK: Final = 1e-3
_MOST_NODES: Final = 300
_WORK_PER_CALL: Final = 50
"""Iterations that are counted for every call in addition to those of the simplex: starting a program takes as long."""


def installed() -> bool:
    """Return whether the solver is installed and can be loaded."""
    try:
        import_module("highspy")
    except ImportError:  # also where a library that it was built for is not there
        return False
    return True


def _silent_solver() -> Any:
    """Return a solver that prints nothing. Since HiGHS 1.16 it prints its version when callbacks are enabled, which its
    constructor does."""
    import highspy

    class SilentHighs(highspy.Highs):  # type: ignore[misc]  # highspy is not read by mypy
        def enableCallbacks(self) -> None:  # noqa: N802  # the name is HiGHS's
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return SilentHighs()


@dataclass(frozen=True, slots=True)
class SolverAnswer:
    """The best point that was found, its value, a bound on any value, and the dual price of each row. Where the solver
    gave up, the point is zero and the bound is infinite."""

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
        # One thread and a fixed seed, so that equal problems have equal plans.
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
        """Return the best point for these gains, upper limits of the variables and limits of the rows."""
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
            point, objective, max(objective, bound), prices, _WORK_PER_CALL + int(solver_info.simplex_iteration_count)
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
        prices = np.zeros(0 if self._integer else rows)
        return SolverAnswer(np.zeros(self.size), 0.0, float("inf"), prices, _WORK_PER_CALL)


SLACK: Final = 0.05
"""How far below the best a pattern may be, as a share of the largest worth: the last bit takes most of the time."""


@dataclass(frozen=True, slots=True)
class PatternShares:
    """The best mix of known patterns: on how many hosts each is, in fractions; and the dual prices of VMs and hosts."""

    patterns: tuple[tuple[HostPattern, float], ...]
    value: float
    kind_prices: tuple[float, ...]
    host_prices: tuple[float, ...]


class KnownPatterns:
    """The patterns found so far, in the order in which they were found, each once."""

    def __init__(self, problem: BatchProblem) -> None:
        self._problem = problem
        self._patterns: dict[HostPattern, None] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, pattern: HostPattern) -> bool:
        """Add a pattern. Returns whether it is new and holds any VM."""
        if not pattern.vms or pattern in self._patterns:
            return False
        self._patterns[pattern] = None
        return True

    def shares(self, remaining: Sequence[int], hosts: Sequence[int]) -> PatternShares:
        """Return how often each pattern is used in the best mix of patterns, if fractions of a pattern are allowed.

        `remaining` has the number of remaining VMs of each kind, `hosts` that of the remaining hosts of each shape. The
        prices are what one more VM of a kind, or one more host of a shape, would add to the worth.
        """
        import numpy as np

        kinds, shapes = len(remaining), len(hosts)
        usable_patterns = (pattern for pattern in self._patterns if hosts[pattern.shape])
        fitting = dict.fromkeys(cut_to_demand(pattern, remaining) for pattern in usable_patterns)
        patterns = tuple(pattern for pattern in fitting if pattern.vms)
        if not patterns:
            return PatternShares((), 0.0, (0.0,) * kinds, (0.0,) * shapes)
        # Maximise the worth of the patterns. Rows: the VMs of each kind, then the hosts of each shape.
        columns = [[*pattern.counts, (kinds + pattern.shape, 1)] for pattern in patterns]
        gains = np.array([self._problem.value(pattern) for pattern in patterns])
        unlimited = np.full(len(patterns), np.inf)
        limits = np.array([*remaining, *hosts], dtype=np.float64)
        answer = SolverProgram(columns, kinds + shapes, integer=False).solve(gains, unlimited, limits)
        point, prices = answer.point.tolist(), answer.prices.tolist()
        used = tuple((pattern, share) for pattern, share in zip(patterns, point, strict=True) if share > 1e-6)
        return PatternShares(used, answer.value, tuple(prices[:kinds]), tuple(prices[kinds:]))


def cut_to_demand(pattern: HostPattern, remaining: Sequence[int]) -> HostPattern:
    """Return the pattern without the VMs that exceed the remaining ones of their kind.

    >>> three_and_one = HostPattern(0, vms=((0, 0, 3), (1, 0, 1)), gpus=())  # (kind, option, VMs)
    >>> cut_to_demand(three_and_one, remaining=(2, 0)).vms
    ((0, 0, 2),)
    """
    if all(count <= remaining[kind] for kind, count in pattern.counts):
        return pattern
    uncovered, vms = list(remaining), []
    for kind, option, count in pattern.vms:
        fitting = min(count, uncovered[kind])
        uncovered[kind] -= fitting
        if fitting:
            vms.append((kind, option, fitting))
    return HostPattern(pattern.shape, tuple(vms), pattern.gpus)


@dataclass(frozen=True, slots=True)
class BestPattern:
    """The best pattern of a host, its value at the prices, and a bound on the value of any."""

    pattern: HostPattern
    value: float
    bound: float
    work: int


class PatternProgram:
    """The integer program that finds the best pattern of one host shape, solved many times at changing prices.

    Variables: VMs by kind and option, then GPUs by group and layout. Rows: what the host has (a VM uses it, a layout
    provides it), the GPUs of each group, the VMs left of each kind.
    `keep`: the program is kept between two calls (a hundred kilobytes of memory); else it is built for each call.
    """

    def __init__(self, number: int, problem: BatchProblem, slack: float = SLACK, *, keep: bool = True) -> None:
        self.number, self._problem = number, problem
        self._slack, self._keep = slack * max(problem.worth, default=0), keep
        self._kept: SolverProgram | None = None
        shape = problem.shapes[number]
        self._options = [
            (kind, index) for kind, options in sorted(shape.options.items()) for index in range(len(options))
        ]
        self._layouts = [
            (index, layout) for index, group in enumerate(shape.groups) for layout in range(len(group.layouts))
        ]
        self._kinds = sorted(shape.options)
        self._limits = (*shape.capacity, *(group.count for group in shape.groups))
        self._gpus = [shape.groups[index].count for index, _ in self._layouts]

    def _program(self) -> SolverProgram:
        """Return the integer program of one host of this shape: a column for each option and each layout."""
        if self._kept is not None:
            return self._kept
        shape = self._problem.shapes[self.number]
        rows, groups = len(shape.capacity), len(shape.groups)
        # The rows: the capacity, the GPUs of each group, the VMs of each kind. A layout adds capacity: negative use.
        row_of = {kind: rows + groups + index for index, kind in enumerate(self._kinds)}
        columns = [
            *((*shape.options[kind][index].uses, (row_of[kind], 1)) for kind, index in self._options),
            *(
                (*((row, -amount) for row, amount in shape.groups[index].layouts[layout]), (rows + index, 1))
                for index, layout in self._layouts
            ),
        ]
        program = SolverProgram(columns, rows + groups + len(self._kinds), integer=True, slack=self._slack)
        self._kept = program if self._keep else None
        return program

    def best(self, prices: Sequence[float], remaining: Sequence[int]) -> BestPattern:
        """Return the best pattern if a VM of each kind costs `prices`, with the `remaining` VMs of each kind."""
        import numpy as np

        # A VM earns its worth less its price; layouts cost nothing. VMs that earn nothing are limited to none.
        gain = [self._problem.worth_of(self.number, kind, option) - prices[kind] for kind, option in self._options]
        most = [float(remaining[kind]) if gain[index] > 0 else 0.0 for index, (kind, _) in enumerate(self._options)]
        answer = self._program().solve(
            np.array([*gain, *([0.0] * len(self._layouts))]),
            np.array([*most, *self._gpus], dtype=np.float64),
            np.array([*self._limits, *(remaining[kind] for kind in self._kinds)], dtype=np.float64),
        )
        # The point holds the counts of the VMs first, then those of the layouts.
        counts = answer.point.round().astype(int).tolist()
        vms = tuple((*choice, count) for choice, count in zip(self._options, counts, strict=False) if count)
        gpus = tuple((*choice, n) for choice, n in zip(self._layouts, counts[len(self._options) :], strict=True) if n)
        used_host_cost = self._problem.used_host_cost
        return BestPattern(
            HostPattern(self.number, vms, gpus),
            answer.value - used_host_cost,
            answer.bound - used_host_cost,
            answer.work,
        )


ENOUGH: Final = 2e-4
"""Share of the worth: a solution that is closer than this to its bound is good enough."""
_SMOOTHING_WEIGHT: Final = 0.5
"""Weight of the best prices known in the prices that are tried."""
_AT_ONCE: Final = 32
"""Shapes whose programs are solved in one round; of a fleet with more, each round takes the next part."""

_MOST_WHOLE_LAYOUTS: Final = 3000
"""Limit of layouts of all shapes, up to which the bound counts whole VMs and GPUs; beyond, that takes too long."""


@dataclass(frozen=True, slots=True)
class PricedShares:
    """The shares at the end of a search, and a bound on the worth of any solution."""

    shares: PatternShares
    most: float


class ColumnGeneration:
    """The patterns found so far, and the work that is left for finding more, in simplex iterations."""

    def __init__(self, problem: BatchProblem, work: int, slack: float = SLACK) -> None:
        self.problem, self.work = problem, work
        self._columns = KnownPatterns(problem)
        self._next_program = -_AT_ONCE
        # With few shapes each program is solved in every round, so it is worth keeping.
        few = len(problem.shapes) <= _AT_ONCE
        self._hosts = [PatternProgram(number, problem, slack, keep=few) for number in range(len(problem.shapes))]

    def price_shares(
        self, unplaced: Sequence[int], hosts: Sequence[int], rounds: int, center: Sequence[float] | None = None
    ) -> PricedShares:
        """Return the best shares for these VMs and hosts after at most `rounds` rounds. `center`: prices to begin with,
        if good ones are known."""
        most = float(sum(count * worth for count, worth in zip(unplaced, self.problem.worth, strict=True)))
        shares = self._columns.shares(unplaced, hosts)
        center, best = center or shares.kind_prices, float("inf")
        # With many shapes a round looks at a part of them; a bound or an end needs as many turns as there are parts.
        rounds_without_gain, turns = 0, -(-sum(map(bool, hosts)) // _AT_ONCE)
        for _ in range(rounds * turns):
            if self.work <= 0 or most - shares.value <= ENOUGH * most:
                break
            improved = False
            # Smoothed prices first: those of a young mix swing. If they lead to no better pattern, the program's own
            # prices are tried.
            for prices in (_smooth(center, shares.kind_prices), shares.kind_prices):
                bound, improved = self._add_better_patterns(prices, shares, unplaced, hosts)
                if bound < best:
                    best, center = bound, prices
                if improved:
                    break
            most = min(most, best)
            # No shape has a better pattern at the program's own prices: the shares are the optimum of the linear
            # program.
            rounds_without_gain = 0 if improved else rounds_without_gain + 1
            if rounds_without_gain >= turns:
                break
            shares = self._columns.shares(unplaced, hosts)
        return PricedShares(shares, most)

    def _add_better_patterns(
        self, prices: Sequence[float], shares: PatternShares, unplaced: Sequence[int], hosts: Sequence[int]
    ) -> tuple[float, bool]:
        """Solve the shapes' programs at these prices, and add the better patterns. Returns a bound on any solution,
        infinite where not every shape was looked at, and whether a pattern was added."""
        programs = [program for program in self._hosts if hosts[program.number]]
        # The Lagrangian bound: all VMs at their prices, and for each host what its best pattern earns beyond them.
        bound = sum(price * count for price, count in zip(prices, unplaced, strict=True))
        improved = False
        for program in self._next_part(programs):
            best = program.best(prices, unplaced)
            self.work -= best.work
            bound += hosts[program.number] * max(0.0, best.bound)
            # A pattern is better where its worth exceeds what its VMs and its host cost in the current shares.
            cost = sum(shares.kind_prices[kind] * n for kind, n in best.pattern.counts)
            gain = self.problem.value(best.pattern) - cost - shares.host_prices[program.number]
            if gain > 1e-6 * max(self.problem.worth):
                improved |= self._columns.add(best.pattern)
        return bound if len(programs) <= _AT_ONCE else float("inf"), improved

    def _next_part(self, programs: Sequence[PatternProgram]) -> Sequence[PatternProgram]:
        """Return the programs for this round: `_AT_ONCE` of them, after those of the last round."""
        if len(programs) <= _AT_ONCE:
            return programs
        self._next_program = (self._next_program + _AT_ONCE) % len(programs)
        # doubled, so that a part may go over the end of the list
        return (*programs, *programs)[self._next_program : self._next_program + _AT_ONCE]


def _smooth(center: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Return prices half-way back to the best ones known.

    >>> _smooth((8, 0), (4, 2))
    (6.0, 1.0)
    """
    weight = _SMOOTHING_WEIGHT
    return tuple(weight * old + (1 - weight) * new for old, new in zip(center, now, strict=True))


def solve_fluid(problem: BatchProblem) -> tuple[float, tuple[float, ...]]:
    """Return a bound on the worth of any solution, and what one more VM of each kind would be worth. All hosts of a
    shape are one large host, and VMs go there in fractions: a linear program, solved once."""
    answer = _solve_large_hosts(problem, integer=False)
    if answer is None:
        return 0.0, (0.0,) * len(problem.demand)
    return answer.bound, tuple(answer.prices[: len(problem.demand)].tolist())


def bound_whole(problem: BatchProblem) -> float:
    """Return a bound on the worth of any solution: all hosts of a shape are one large host, but VMs and GPUs are whole.

    Example: two GPUs of 48 GiB, each for vGPUs of one size, three VMs of 24 GiB and five of 8 GiB. In fractions one
    and a half GPUs have the large ones and the others small ones, 96 GiB in all; whole GPUs place at most 88 GiB.
    """
    if sum(len(group.layouts) for shape in problem.shapes for group in shape.groups) > _MOST_WHOLE_LAYOUTS:
        return float("inf")
    answer = _solve_large_hosts(problem, integer=True)
    return 0.0 if answer is None else answer.bound


def _solve_large_hosts(problem: BatchProblem, *, integer: bool) -> SolverAnswer | None:
    """Return the solution if all hosts of a shape were one large host; None = nothing can be placed anywhere."""
    import numpy as np

    # Rows: the VMs of each kind, then for each shape its capacity and the GPUs of each group.
    columns: list[list[tuple[int, float]]] = []
    gains: list[float] = []
    limits: list[float] = list(map(float, problem.demand))
    for number, shape in enumerate(problem.shapes):
        first_row = len(limits)
        limits += [float(shape.count * amount) for amount in shape.capacity]
        limits += [float(shape.count * group.count) for group in shape.groups]
        for kind, options in sorted(shape.options.items()):
            for number_of_option, option in enumerate(options):
                columns.append([(kind, 1), *((first_row + row, amount) for row, amount in option.uses)])
                gains.append(problem.worth_of(number, kind, number_of_option))
        for index, group in enumerate(shape.groups):
            for layout in group.layouts:
                group_row = first_row + len(shape.capacity) + index
                # a layout adds capacity: its use is negative
                columns.append([*((first_row + row, -amount) for row, amount in layout), (group_row, 1)])
                gains.append(0.0)
    if not columns:
        return None
    return SolverProgram(columns, len(limits), integer=integer).solve(
        np.array(gains), np.full(len(columns), np.inf), np.array(limits)
    )
