"""Bound: what no plan is worth more than, whoever made it and wherever its VMs are."""

from __future__ import annotations

from typing import Final

from gpuops.plan.batch.fluid import fluid
from gpuops.plan.batch.problem import Problem
from gpuops.plan.batch.search import Search
from gpuops.plan.batch.solve import ROUNDS, WORK
from gpuops.plan.batch.topping import loose

_FINE: Final = 0.002
_MANY: Final = 32
"""Shapes of hosts: of so many, hosts in parts say as much as hosts one by one."""


def bound(problem: Problem, work: int = WORK) -> float:
    """GPU memory that no solution can place more of. `work` limits the search, in simplex iterations."""
    blind = loose(problem)
    most, prices = fluid(blind)
    most = min(most, problem.asked)
    if most >= problem.asked or len(problem.shapes) > _MANY:
        return most
    hosts = [shape.count for shape in problem.shapes]
    return min(most, Search(blind, work, _FINE).priced(problem.demand, hosts, ROUNDS, prices).most)
