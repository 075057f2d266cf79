"""How a VM compares with itself at other hours, and with what its scheduler and its GPU leave it, by ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COURSES: Final = (
    "gpu use",
    "GPU total",
    "CPU",
    "CPU to GPU",
    "ready",
    "disk latency",
    "packets lost",
    "power",
    "temperature",
    "clock under load",
    "frame buffer",
)
"""Channels whose course is described."""
COURSE: Final = ("step", "step's size", "dips", "peaks", "steadiness")
LINES: Final = (
    ("power", "GPU total"),
    ("temperature", "GPU total"),
    ("CPU", "gpu use"),
    ("clock", "GPU total"),
    ("gpu use", "neighbours' use"),
)
"""Pairs of which the first follows the second by a line."""
LINE: Final = ("slope", "rest", "lowest rest", "step of the rest")
LIMITS: Final = ("at its part", "at an equal part", "GPU is full", "below an equal part while the GPU is full")
PATTERNS: Final = (
    *(f"{channel}: {each}" for channel in COURSES for each in COURSE),
    *(f"{one} by {other}: {each}" for one, other in LINES for each in LINE),
    *LIMITS,
)
_FEW: Final = 6
"""Of fewer steps nothing is said."""
_UNKNOWN: Final = -9.0


def patterns(of: Mapping[str, Floats]) -> list[float]:
    """A number for each of PATTERNS, by the channels of a case."""
    row: list[float] = []
    for channel in COURSES:
        row += _course(of[channel])
    for one, other in LINES:
        row += _line(of[one], of[other])
    return row + _limits(of)


def _course(series: Floats) -> list[float]:
    known = series[~np.isnan(series)]
    if len(known) < _FEW:
        return [_UNKNOWN] * len(COURSE)
    middle = float(np.median(known))
    size = max(abs(middle), 1e-3)
    clear, jump = _step(known)
    steady = known - known.mean()
    power = float((steady**2).sum())
    return [
        clear,
        jump / size if size < 1e6 else 0.0,
        float((known < 0.6 * middle).mean()),
        float((known > 1.5 * middle).mean()),
        float((steady[1:] * steady[:-1]).sum()) / power if power > 1e-12 else 0.0,
    ]


def _step(known: Floats) -> tuple[float, float]:
    """The clearest change from one level to another: its size in standard deviations of what is left, and as it is."""
    count = len(known)
    ends = np.arange(3, count - 2)
    sums, squares = np.cumsum(known), np.cumsum(known**2)
    before, after = sums[ends - 1] / ends, (sums[-1] - sums[ends - 1]) / (count - ends)
    left = squares[-1] - ends * before**2 - (count - ends) * after**2
    gain = (after - before) ** 2 * ends * (count - ends) / count
    at = int(gain.argmax())
    jump = float(after[at] - before[at])
    return float(np.clip(jump / np.sqrt(max(float(left[at]), 0.0) / count + 1e-8), -20, 20)), jump


def _line(one: Floats, other: Floats) -> list[float]:
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < _FEW:
        return [_UNKNOWN] * len(LINE)
    x, y = other[both], one[both]
    across = x - x.mean()
    spread = float((across**2).sum())
    slope = float((across * (y - y.mean())).sum()) / spread if spread > 1e-6 else 0.0
    rest = y - y.mean() - slope * across
    size = max(abs(float(y.mean())), 1e-3)
    return [slope / size, float(rest.std()) / size, float(rest.min()) / size, _step(rest)[0]]


def _limits(of: Mapping[str, Floats]) -> list[float]:
    part, equal, total = of["use of its part"], of["use of an equal part"], of["GPU total"]
    full = total > 0.95
    return [
        _share(np.abs(part - 1) < 0.06, ~np.isnan(part)),
        _share(np.abs(equal - 1) < 0.06, ~np.isnan(equal)),
        _share(full, ~np.isnan(total)),
        _share(full & (equal < 1.05), ~(np.isnan(total) | np.isnan(equal))),
    ]


def _share(which: NDArray[np.bool_], known: NDArray[np.bool_]) -> float:
    return float((which & known).sum() / known.sum()) if known.any() else _UNKNOWN
