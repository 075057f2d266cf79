"""Features: a case as a row of numbers, which are statistics and correlations of channels, symptoms and facts.

Symptoms are what an experienced admin looks for, such as the longest time beyond a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import Component, DiagnosisCase
from gpuops.extras.diagnosis.channels import CHANNELS, channels
from gpuops.model.devices.scheduler import SchedulerPolicy

Floats = NDArray[np.float64]

UNKNOWN: Final = -1.0
"""Stands for an unknown number: known ones are not negative, except logarithms, which stay above it."""

_LATENCIES_MS: Final = (18, 25, 50)
"""VMware calls 20 ms of a disk slow; a datastore at fault is well above for long."""
_LOST_SHARES: Final = (0.001, 0.003, 0.008)
"""Limits of the share of packets that are lost; 16.5 packets of 1.2 kB in 20 s make 1 kB/s."""
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
    *(("packets lost", float(np.log1p(16_500 * limit))) for limit in _LOST_SHARES),
    ("host CPU", 0.75),
    ("temperature", 81.0),
    ("power", 0.95),
)
"""Channels, each with a limit that counts as high. VMware KB 2002181: VMs are slow from 5 % CPU ready of a vCPU on."""
_LIMITS: Final = np.array([[limit] for _, limit in LIMITS])
_LEAST_STEPS: Final = 3
"""With fewer steps no mean of the GPU's use is computed."""
_SPELLS: Final = ("share", "longest", "use then")
_HELD: Final = ("use of its part", "use of an equal part")
"""Channels that stay at 1 while a scheduler limits the VM to its share."""
_RECLAIMED: Final = ("swapped", "ballooned")
_FULL: Final = 0.9
"""From this share on a frame buffer may be full: averages of five minutes hide short falls."""
_FALL: Final = 0.85
"""Below this share the use of a frame buffer that was full has fallen: an application has ended."""
_TOPS: Final = ("temperature", "power")
"""Channels that stay near their highest value while heat or a power limit slows the GPU."""

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
"""The name of each symptom; it begins with the channel that the number is computed from."""


def symptoms(of: Mapping[str, Floats], watts: Floats) -> list[float]:
    """Return a number for each of SYMPTOMS, never NaN. `of` holds the channels of a case, `watts` its GPU's power."""
    use = of["gpu use"]
    total = np.where(np.isnan(of["GPU total"]), use + of["neighbours' use"], of["GPU total"])
    limited = np.array([total if channel == "GPU total" else of[channel] for channel, _ in LIMITS])
    row: list[float] = _spells_beyond_limits(limited, use).ravel().tolist()
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
    """Return the share of steps at 1, and of those at 1 in which the GPU still has time left (`total` < 0.94)."""
    has_sample = ~np.isnan(samples)
    if not has_sample.any():
        return [UNKNOWN, UNKNOWN]
    is_at_one = np.abs(samples - 1) < 0.05
    return [float(is_at_one.sum() / has_sample.sum()), float((is_at_one & (total < 0.94)).sum() / has_sample.sum())]


def _reclaim_signs(samples: Floats) -> list[float]:
    """Return the highest sample, the range, the range as a share of the highest, and how often the series rises.

    A series that does not change is no fault: memory that was swapped once and not used since.
    """
    if not len(samples):
        return [UNKNOWN] * 4
    most, span = float(samples.max()), float(samples.max() - samples.min())
    rises = float((np.diff(samples) > 1e-6).mean()) if len(samples) > 1 else 0.0
    return [most, span, span / max(most, 1e-4), rises]


def _at_top(samples: Floats, near: float = 0.0, near_share: float = 0.0) -> list[float]:
    """Return the share of samples near the highest, and the median as a share of the highest.

    Near means at most `near`, or `near_share` of the highest, below it.
    """
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
"""Channels that are used only in pairs: from their level, models would learn the set-up and not the fault."""
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
    *(f"{first_channel} with {second_channel}" for first_channel, second_channel in PAIRS),
    *SYMPTOMS,
    *FACTS,
)
"""The name of each number of a row."""

BEARS_ON: Final[Mapping[Component, tuple[str, ...]]] = {
    Component.NOISY_NEIGHBOUR: (
        "gpu use",
        "neighbours' use",
        "GPU total",
        "use beside others",
        "use of an equal part",
    ),
    Component.SCHEDULER: ("gpu use", "use of its part", "use of an equal part", "GPU total"),
    Component.LICENCE: ("licensed", "gpu use", "GPU total", "frame buffer"),
    Component.THROTTLING: (
        "power",
        "temperature",
        "clock",
        "clock under load",
        "slowed by heat",
        "slowed by power",
        "GPU total",
    ),
    Component.PCIE_LINK: ("link",),
    Component.ECC: ("new ECC errors", "gpu use"),
    Component.FRAME_BUFFER: ("frame buffer", "gpu use"),
    Component.REMOTE_NUMA: (),
    Component.CPU_READY: ("ready", "CPU", "host CPU"),
    Component.MEMORY_RECLAIMED: ("ballooned", "swapped", "disk latency"),
    Component.DATASTORE: ("disk latency", "latency for its disk use", "disk", "ballooned", "swapped", "gpu use"),
    Component.NETWORK: ("packets lost", "ready"),
    Component.DRIVER: ("gpu use", "CPU", "frame buffer"),
}
"""The channels by which each component is recognised; FACTS bear on all.

A narrow link and remote memory have no sign of their own but less use of the GPU, which every fault causes. From that
sign models would only learn habits of the training cases.
"""


def columns(component: Component) -> list[int]:
    """Return the places in NAMES of the numbers from which a component is judged, and of all facts.

    A pair of channels is used if both bear on the component, or if the first is the GPU's use and the second bears on
    it.
    """
    relevant_channels = BEARS_ON[component]
    places = [at for at, name in enumerate(NAMES) if name in FACTS or name.partition(": ")[0] in relevant_channels]
    first_pair = NAMES.index(f"{PAIRS[0][0]} with {PAIRS[0][1]}")
    places += [
        first_pair + at
        for at, (first_channel, second_channel) in enumerate(PAIRS)
        if second_channel in relevant_channels and (first_channel in relevant_channels or first_channel == "gpu use")
    ]
    return sorted(places)


def features(cases: Iterable[DiagnosisCase]) -> Floats:
    """Return a row for each case with a column for each of NAMES; nothing is NaN."""
    return np.array([_row(case) for case in cases]).reshape(-1, len(NAMES))


def _row(case: DiagnosisCase) -> list[float]:
    """Return the numbers of a case in the order of NAMES."""
    of = channels(case)
    row = _statistics(np.array([of[channel] for channel in SHARES])).ravel().tolist()
    row += [correlation(of[first_channel], of[second_channel]) for first_channel, second_channel in PAIRS]
    watts = case.series.get("gpu:gpu.power.used.latest", np.full(len(of["power"]), np.nan))
    return row + symptoms(of, watts) + _facts(case)


def _statistics(channel_rows: Floats) -> Floats:
    """Return a row of STATISTICS for each channel; `channel_rows`: a row for each channel, a column for each step."""
    missing = np.isnan(channel_rows)
    count = (~missing).sum(axis=1)
    statistics = np.full((len(channel_rows), len(STATISTICS)), UNKNOWN)
    has_samples = count > 0
    if not has_samples.any():
        return statistics
    missing, count = missing[has_samples], count[has_samples]
    # measured steps first, in order of time
    samples = np.take_along_axis(channel_rows[has_samples], np.argsort(missing, axis=1, kind="stable"), axis=1)
    ranks = np.sort(samples, axis=1)  # missing steps come last in both
    # for each channel: the index of its highest known sample, and how many samples a third of the time has
    last, third_length, row_numbers = count - 1, np.maximum(1, count // 3), np.arange(len(count))
    at, filled = np.arange(samples.shape[1]), np.nan_to_num(samples)
    mean, top = filled.sum(axis=1) / count, ranks[row_numbers, last]
    deviations = np.where(at < count[:, None], filled - mean[:, None], 0.0)
    begins, ends = at < third_length[:, None], (at >= (count - third_length)[:, None]) & (at < count[:, None])
    share_near_top = (ranks >= 0.95 * top[:, None]).sum(axis=1) / count
    statistics[has_samples] = np.column_stack(
        (  # in the order of STATISTICS
            mean,
            ranks[:, 0],
            ranks[row_numbers, np.round(0.1 * last).astype(int)],
            ranks[row_numbers, last // 2],
            ranks[row_numbers, np.round(0.9 * last).astype(int)],
            top,
            np.sqrt((deviations**2).sum(axis=1) / count),
            ((filled * ends).sum(axis=1) - (filled * begins).sum(axis=1)) / third_length,
            np.where(top > 0, share_near_top, 0.0),
        )
    )
    return statistics


def _facts(case: DiagnosisCase) -> list[float]:
    """Return the facts of the case as numbers, in the order of FACTS."""
    facts = case.facts
    policies = (SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE, SchedulerPolicy.BEST_EFFORT)
    has_newer_guest_driver = UNKNOWN
    if facts.host_driver is not None and facts.guest_driver is not None:
        has_newer_guest_driver = float(facts.guest_driver > facts.host_driver)
    return [
        *(UNKNOWN if facts.scheduler is None else float(facts.scheduler is policy) for policy in policies),
        UNKNOWN if facts.remote_memory is None else facts.remote_memory,
        has_newer_guest_driver,
        UNKNOWN if facts.sharers is None else float(facts.sharers == 1),
    ]
