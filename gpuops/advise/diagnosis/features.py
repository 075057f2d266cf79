"""A case as a row of numbers: how each channel was over the while, and how pairs of channels went together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.channels import CHANNELS, channels
from gpuops.model.case import DiagnosisCase
from gpuops.model.scheduler import SchedulerPolicy

Floats = NDArray[np.float64]

UNKNOWN: Final = -1.0
"""Of a channel without any value; no channel that is known is negative but for logarithms, which end above it."""
_NO_SHARES: Final = (
    "temperature",
    "disk",
    "network",
    "dropped",
    "consumed",
    "active",
    "GPU memory",
    "host memory",
    "host CPU",
)
"""Channels that are used in pairs alone: by their level models learn the set-up, and not what is at fault."""
SHARES: Final = tuple(channel for channel in CHANNELS if channel not in _NO_SHARES)
STATISTICS: Final = ("mean", "lowest", "tenth", "median", "nine tenths", "highest", "spread", "change", "at its top")
PAIRS: Final = (
    ("gpu use", "CPU"),
    ("gpu use", "neighbours' use"),
    ("gpu use", "ready"),
    ("gpu use", "disk latency"),
    ("gpu use", "frame buffer"),
    ("gpu use", "packets lost"),
    ("disk latency", "disk"),
    ("dropped", "network"),
    ("ready", "host CPU"),
)
FACTS: Final = ("shares equally", "has a fixed share", "best effort", "remote memory", "guest driver is newer", "alone")
NAMES: Final = (
    *(f"{channel}: {statistic}" for channel in SHARES for statistic in STATISTICS),
    *(f"{one} with {other}" for one, other in PAIRS),
    *FACTS,
)
"""What each number of a row is."""


def features(cases: Iterable[DiagnosisCase]) -> Floats:
    """A row for each case, a column for each of NAMES; nothing is NaN."""
    return np.array([_row(case) for case in cases]).reshape(-1, len(NAMES))


def _row(case: DiagnosisCase) -> list[float]:
    of = channels(case)
    row = _statistics(np.array([of[channel] for channel in SHARES])).ravel().tolist()
    row += [_together(of[one], of[other]) for one, other in PAIRS]
    return row + _facts(case)


def _statistics(values: Floats) -> Floats:
    """A row of STATISTICS for each channel; `values`: a row for each channel, a column for each step."""
    found = np.full((len(values), len(STATISTICS)), UNKNOWN)
    for row, series in enumerate(values):
        known = series[~np.isnan(series)]
        if not len(known):
            continue
        ranks = np.sort(known)
        last, third, mean = len(ranks) - 1, max(1, len(known) // 3), known.sum() / len(known)
        found[row] = (
            mean,
            ranks[0],
            ranks[round(0.1 * last)],
            ranks[last // 2],
            ranks[round(0.9 * last)],
            ranks[last],
            ((known - mean) ** 2).sum() / len(known),
            known[-third:].sum() / third - known[:third].sum() / third,
            (ranks >= 0.95 * ranks[last]).sum() / len(known) if ranks[last] > 0 else 0.0,
        )
    found[:, STATISTICS.index("spread")] = np.where(
        found[:, 0] == UNKNOWN, UNKNOWN, np.sqrt(np.abs(found[:, STATISTICS.index("spread")]))
    )
    return found


def _together(one: Floats, other: Floats) -> float:
    """Their correlation over the steps in which both are known; 0 = none, or too few steps."""
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() < 8:
        return 0.0
    first, second = one[both] - one[both].mean(), other[both] - other[both].mean()
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / size if size > 1e-9 else 0.0


def _facts(case: DiagnosisCase) -> list[float]:
    facts = case.facts
    policies = (SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE, SchedulerPolicy.BEST_EFFORT)
    newer = UNKNOWN
    if facts.host_driver is not None and facts.guest_driver is not None:
        newer = float(facts.guest_driver > facts.host_driver)
    return [
        *(UNKNOWN if facts.scheduler is None else float(facts.scheduler is policy) for policy in policies),
        UNKNOWN if facts.remote_memory is None else facts.remote_memory,
        newer,
        UNKNOWN if facts.sharers is None else float(facts.sharers == 1),
    ]
