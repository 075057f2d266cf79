"""Columns: the patterns that are known so far, and the linear program that shares the hosts out among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuops.plan.batch.highs import Program
from gpuops.plan.batch.problem import Pattern, Problem


@dataclass(frozen=True, slots=True)
class Shares:
    """The best mix of known patterns: on how many hosts each is, in parts; and what VMs and hosts are worth there."""

    patterns: tuple[tuple[Pattern, float], ...]
    value: float
    kind_prices: tuple[float, ...]
    host_prices: tuple[float, ...]


class Columns:
    """Patterns in the order in which they were found, each once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._patterns: dict[Pattern, None] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, pattern: Pattern) -> bool:
        """Whether it is a new one."""
        if not pattern.vms or pattern in self._patterns:
            return False
        self._patterns[pattern] = None
        return True

    def shares(self, left: Sequence[int], hosts: Sequence[int]) -> Shares:
        """For so many VMs of each kind and so many hosts of each shape."""
        import numpy as np

        kinds, shapes = len(left), len(hosts)
        cut = dict.fromkeys(self._cut(left, hosts))
        if not cut:
            return Shares((), 0.0, (0.0,) * kinds, (0.0,) * shapes)
        patterns = tuple(cut)
        columns = [[*pattern.counts, (kinds + pattern.shape, 1)] for pattern in patterns]
        gains = np.array([self._problem.value(pattern) for pattern in patterns])
        answer = Program(columns, kinds + shapes, integer=False).solve(
            gains, np.full(len(patterns), np.inf), np.array([*left, *hosts], dtype=np.float64)
        )
        point, prices = answer.point.tolist(), answer.prices.tolist()
        shared = tuple((pattern, share) for pattern, share in zip(patterns, point, strict=True) if share > 1e-6)
        return Shares(shared, answer.value, tuple(prices[:kinds]), tuple(prices[kinds:]))

    def _cut(self, left: Sequence[int], hosts: Sequence[int]) -> Iterable[Pattern]:
        for pattern in self._patterns:
            if hosts[pattern.shape]:
                known = cut(pattern, left)
                if known.vms:
                    yield known


def cut(pattern: Pattern, left: Sequence[int]) -> Pattern:
    """The pattern without the VMs that there are none left of."""
    if all(count <= left[kind] for kind, count in pattern.counts):
        return pattern
    rest, vms = list(left), []
    for kind, way, count in pattern.vms:
        some = min(count, rest[kind])
        rest[kind] -= some
        if some:
            vms.append((kind, way, some))
    return Pattern(pattern.shape, tuple(vms), pattern.gpus)
