"""Rotation, durations: how long operations took here so far, and how long the slow ones of them take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, TypeVar

Key = TypeVar("Key", bound=tuple[str, str, str])

ENOUGH: Final = 20
"""So many measurements on one host speak for it; with fewer, those of all hosts do."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that steps took, by (name of the kind of step, host). Empty = nothing was ever measured."""

    seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, recorded: Mapping[Key, Sequence[float]]) -> Durations:
        """Those that a journal recorded, by (kind of step, profiles, host)."""
        found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for (kind, _, host), seconds in recorded.items():
            found[kind, host] += seconds
        return cls({key: tuple(seconds) for key, seconds in found.items()})

    def p99_s(self, kind: str, host: str | None, otherwise: float) -> float:
        """What 99 of 100 such steps on this host stay within; of few measurements the longest."""
        here = self.seconds.get((kind, host or ""), ())
        return _p99(here if len(here) >= ENOUGH else self._everywhere(kind), otherwise)

    def _everywhere(self, kind: str) -> list[float]:
        return [second for (name, _), seconds in self.seconds.items() if name == kind for second in seconds]


def _p99(seconds: Iterable[float], otherwise: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(seconds)
    return ordered[ceil(0.99 * len(ordered)) - 1] if ordered else otherwise
