"""A case as a row of numbers: statistics of each channel, and correlations of pairs of channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import Component, DiagnosisCase
from gpuops.extras.diagnosis.channels import CHANNELS, channels
from gpuops.extras.diagnosis.symptoms import SYMPTOMS
from gpuops.extras.diagnosis.symptoms import UNKNOWN, correlation, symptoms
from gpuops.model.devices.scheduler import SchedulerPolicy

Floats = NDArray[np.float64]

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
"""Channels that are used in pairs alone: from their level models learn the set-up, and not the fault."""
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
    first = NAMES.index(f"{PAIRS[0][0]} with {PAIRS[0][1]}")
    places += [
        first + at
        for at, (first_channel, second_channel) in enumerate(PAIRS)
        if second_channel in relevant_channels and (first_channel in relevant_channels or first_channel == "gpu use")
    ]
    return sorted(places)


def features(cases: Iterable[DiagnosisCase]) -> Floats:
    """Return a row for each case with a column for each of NAMES; nothing is NaN."""
    return np.array([_row(case) for case in cases]).reshape(-1, len(NAMES))


def _row(case: DiagnosisCase) -> list[float]:
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
