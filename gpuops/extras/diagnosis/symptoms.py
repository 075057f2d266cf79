"""Computes what an experienced admin looks for in the counters of a case: how long each is beyond a usual limit.

A share of the steps and the longest spell beyond a limit tell a backup from a slow datastore, and compare over windows
of any length, where means and extremes do not. All numbers are shares or ratios, so that hardware of any size compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNKNOWN: Final = -1.0
"""Stands for an unknown number: known ones are not negative, except logarithms, which stay above it."""

_LATENCIES_MS: Final = (18, 25, 50)
"""VMware calls 20 ms of a disk slow; a datastore at fault is well above for long."""
_LOST: Final = (0.001, 0.003, 0.008)
"""Of all packets; 16.5 packets of 1.2 kB in 20 s make 1 kB/s."""
LIMITS: Final = (
    ("GPU total", 0.93),
    ("GPU total", 0.96),
    ("gpu use", 0.004),
    ("gpu use", 0.27),
    ("use of its part", 1.06),
    ("use of an equal part", 1.06),
    ("frame buffer", 0.012),
    ("frame buffer", 0.93),
    ("frame buffer", 0.85),
    ("ready", 0.03),
    ("ready", 0.05),
    ("ready", 0.1),
    *(("disk latency", float(np.log1p(limit))) for limit in _LATENCIES_MS),
    *(("packets lost", float(np.log1p(16_500 * limit))) for limit in _LOST),
    ("host CPU", 0.75),
    ("temperature", 81.0),
    ("power", 0.95),
)
"""Channels, and beyond what each is looked at. KB 2002181 of VMware: 5 % ready of a vCPU is where it begins to show."""
_LIMITS: Final = np.array([[limit] for _, limit in LIMITS])
_LEAST_STEPS: Final = 3
"""With fewer steps no mean of the GPU's use is computed."""
_SPELLS: Final = ("share", "longest", "use then")
_HELD: Final = ("use of its part", "use of an equal part")
"""Channels that a scheduler holds at 1."""
_RECLAIMED: Final = ("swapped", "ballooned")
_FULL: Final = 0.9
"""From this share on a frame buffer may be full: averages of five minutes hide short falls."""
_FALL: Final = 0.85
"""An application that ended leaves at most so much of what was in use."""
_TOPS: Final = ("temperature", "power")
"""Channels that heat or a limit of power hold at their top."""

SYMPTOMS: Final = (
    *(f"{channel}: {spell} beyond {limit:.3g}" for channel, limit in LIMITS for spell in _SPELLS),
    *(f"{channel}: {sign}" for channel in _HELD for sign in ("held at 1", "held at 1 with room beside it")),
    *(f"{channel}: {sign}" for channel in _RECLAIMED for sign in ("most", "range", "range of the most", "rises")),
    *(f"{channel}: {sign}" for channel in _TOPS for sign in ("near its top", "median to its top")),
    "neighbours' use: while the GPU is full",
    "use of an equal part: while the GPU is full",
    "GPU total: spread while the GPU is full",
    "gpu use: low to high level",
    "CPU: while the GPU rests",
    "temperature: with GPU total",
    "power: with GPU total",
    "swapped: with disk latency",
    *(
        f"frame buffer: {sign} while it is full"
        for sign in (
            "falls",
            "spread",
            "use with CPU",
            "use with active memory",
            "CPU with active memory",
            "CPU to GPU",
        )
    ),
)
"""What each number is, and first the channel that it is of."""


def symptoms(of: Mapping[str, Floats], watts: Floats) -> list[float]:
    """Return a number for each of SYMPTOMS, never NaN. `of` holds the channels of a case, `watts` its GPU's power."""
    use = of["gpu use"]
    total = np.where(np.isnan(of["GPU total"]), use + of["neighbours' use"], of["GPU total"])
    looked_at = np.array([total if channel == "GPU total" else of[channel] for channel, _ in LIMITS])
    row: list[float] = _spells_beyond_limits(looked_at, use).ravel().tolist()
    for channel in _HELD:
        row += _shares_at_one(of[channel], total)
    for channel in _RECLAIMED:
        row += _reclaim_signs(_without_gaps(of[channel]))
    row += _at_top(_without_gaps(of["temperature"]), near=4.0) + _at_top(_without_gaps(watts), near_share=0.04)
    return [
        *row,
        *_sharing_signs(of, use, total),
        correlation(of["temperature"], total),
        correlation(watts, total),
        correlation(of["swapped"], of["disk latency"]),
        *_full_buffer_signs(of),
    ]


def _without_gaps(samples: Floats) -> Floats:
    return samples[~np.isnan(samples)]


def _spells_beyond_limits(samples: Floats, use: Floats) -> Floats:
    """Return for each of LIMITS the share of steps beyond it, the share of the longest spell, and a ratio of GPU use.

    The ratio is the mean GPU use in steps beyond the limit divided by that in the other steps, 3 at most; 1 = too few
    steps. `samples`: a row for each of LIMITS, a column for each step; NaN = missing.
    """
    has_sample = ~np.isnan(samples)
    count = has_sample.sum(axis=1)
    beyond, within = samples > _LIMITS, samples <= _LIMITS
    # the known steps first, in order of time
    first_known = np.take_along_axis(beyond, np.argsort(~has_sample, axis=1, kind="stable"), axis=1)
    at = np.arange(samples.shape[1])
    last_within = np.maximum.accumulate(np.where(first_known, -1, at), axis=1)  # the last step that was not beyond
    longest = (at - last_within).max(axis=1, initial=0)
    used, use_is_known = np.nan_to_num(use), (~np.isnan(use)).astype(float)
    steps_beyond, steps_within = beyond @ use_is_known, within @ use_is_known
    ratio = (
        (beyond @ used) / np.maximum(steps_beyond, 1) / np.maximum(0.01, (within @ used) / np.maximum(steps_within, 1))
    )
    spells = np.column_stack((beyond.sum(axis=1), longest, np.zeros(len(samples))))  # the ratio is set below
    spell_rows: Floats = spells / np.maximum(count, 1)[:, None]
    spell_rows[count == 0] = UNKNOWN
    spell_rows[:, 2] = np.where(np.minimum(steps_beyond, steps_within) < _LEAST_STEPS, 1.0, np.minimum(3.0, ratio))
    return spell_rows


def _shares_at_one(samples: Floats, total: Floats) -> list[float]:
    has_sample = ~np.isnan(samples)
    if not has_sample.any():
        return [UNKNOWN, UNKNOWN]
    is_at_one = np.abs(samples - 1) < 0.05
    return [float(is_at_one.sum() / has_sample.sum()), float((is_at_one & (total < 0.94)).sum() / has_sample.sum())]


def _reclaim_signs(samples: Floats) -> list[float]:
    """Return the most, the range and how often it rises: memory swapped once and not touched again is no cause."""
    if not len(samples):
        return [UNKNOWN] * 4
    most, span = float(samples.max()), float(samples.max() - samples.min())
    rises = float((np.diff(samples) > 1e-6).mean()) if len(samples) > 1 else 0.0
    return [most, span, span / max(most, 1e-4), rises]


def _at_top(samples: Floats, near: float = 0.0, near_share: float = 0.0) -> list[float]:
    if not len(samples) or samples.max() <= 0:
        return [UNKNOWN, UNKNOWN]
    top = float(samples.max())
    return [float((samples >= top - near - near_share * top).mean()), float(np.median(samples)) / top]


def correlation(series: Floats, other_series: Floats) -> float:
    """Return the correlation of two series over the steps where both are known; 0 = none, or too few steps."""
    both_known = ~(np.isnan(series) | np.isnan(other_series))
    if both_known.sum() < 8:
        return 0.0
    first, second = (
        series[both_known] - series[both_known].mean(),
        other_series[both_known] - other_series[both_known].mean(),
    )
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / size if size > 1e-9 else 0.0


def _full_buffer_signs(of: Mapping[str, Floats]) -> list[float]:
    """Return numbers by which a frame buffer that is too small differs from one that a framework fills at its start.

    If it is too small, the guest pages, so CPU and active memory rise while the GPU waits; or applications end, and the
    use falls. Example of falls: with 0.98, 0.97, 0.3, 0.98 one of the three steps after a full step is a fall.
    """
    memory, use = of["frame buffer"], of["gpu use"]
    full = memory > _FULL
    if full.sum() < _LEAST_STEPS:
        return [UNKNOWN] * 2 + [0.0] * 3 + [1.0]  # falls and deviation, three correlations, the ratio
    memory_samples = _without_gaps(memory)
    after_full_step = memory_samples[1:][memory_samples[:-1] > _FULL]
    falls = float((after_full_step < _FALL).mean()) if len(after_full_step) else 0.0
    cpu, active = (np.where(full, of[channel], np.nan) for channel in ("CPU", "active"))
    when_not_full = _without_gaps(of["CPU to GPU"][memory <= _FULL])
    when_full = _without_gaps(of["CPU to GPU"][full])
    ratio = (
        float(np.median(when_full) / max(0.01, np.median(when_not_full)))
        if min(len(when_full), len(when_not_full)) > 2
        else 1.0
    )
    pairs = [correlation(cpu, use), correlation(active, use), correlation(active, cpu)]
    return [falls, float(memory_samples[memory_samples > _FULL].std()), *pairs, min(5.0, ratio)]


def _sharing_signs(of: Mapping[str, Floats], use: Floats, total: Floats) -> list[float]:
    """Return the numbers that show how the GPU is shared, in the order of SYMPTOMS: first while the GPU is full."""
    full = total > 0.96  # some samples of a full GPU show a little less than 1
    neighbour_use, equal, totals = (
        _without_gaps(channel[full]) for channel in (of["neighbours' use"], of["use of an equal part"], total)
    )
    used = _without_gaps(use)
    low, high = used[used <= 0.27], used[used > 0.27]  # up to a quarter: what a VM without a licence can use
    idle = _without_gaps(of["CPU"][use < 0.004])  # its CPU use while it does not use the GPU
    return [
        float(neighbour_use.mean()) if len(neighbour_use) else UNKNOWN,
        float(equal.mean()) if len(equal) else UNKNOWN,
        float(totals.std()) if len(totals) > 2 else UNKNOWN,
        float(low.mean() / high.mean()) if min(len(low), len(high)) > 1 else 1.0,
        float(idle.mean()) if len(idle) else UNKNOWN,
    ]
