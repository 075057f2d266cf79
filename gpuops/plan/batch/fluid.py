"""Fluid: all equal hosts as one large host, VMs in parts. A bound on any solution, and first prices of the VMs."""

from __future__ import annotations

from gpuops.plan.batch.highs import Program
from gpuops.plan.batch.problem import Problem


def fluid(problem: Problem) -> tuple[float, tuple[float, ...]]:
    """What no solution is worth more than, and what one VM more of each kind would be worth."""
    import numpy as np

    columns: list[list[tuple[int, float]]] = []
    gains: list[float] = []
    limits: list[float] = list(map(float, problem.demand))
    for number, shape in enumerate(problem.shapes):
        first = len(limits)
        limits += [float(shape.count * much) for much in shape.capacity]
        limits += [float(shape.count * group.count) for group in shape.groups]
        for kind, ways in sorted(shape.ways.items()):
            for way, each in enumerate(ways):
                columns.append([(kind, 1), *((first + row, much) for row, much in each.uses)])
                gains.append(problem.worth_of(number, kind, way))
        for at, group in enumerate(shape.groups):
            for filling in group.fillings:
                row = first + len(shape.capacity) + at
                columns.append([*((first + row, -much) for row, much in filling), (row, 1)])
                gains.append(0.0)
    if not columns:
        return 0.0, (0.0,) * len(problem.demand)
    answer = Program(columns, len(limits), integer=False).solve(
        np.array(gains), np.full(len(columns), np.inf), np.array(limits)
    )
    return answer.value, tuple(answer.prices[: len(problem.demand)].tolist())
