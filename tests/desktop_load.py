"""What the performance counters of a desktop show in a made-up week, in samples of 20 s. Pure, by seed.

Somebody who is at a desktop works and reads by turns: while they read, CPU, GPU and network look nearly as if no user
were there. Scans and updates use CPU while no user is there. The figures are our own, measured in no office.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.sim.state.desktop_people import DAY_S, DAYS, ENDS_S, HOUR_S, MINUTE_S, Office, People, people

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

CPU_MHZ: Final = "cpu.usagemhz.average"
GPU_USE: Final = "gpu.utilization.average"
NETWORK: Final = "net.usage.average"
ENCODER: Final = "gpu.encode.utilization.latest"
SHOWN: Final = (CPU_MHZ, NETWORK, GPU_USE, ENCODER)
SAMPLE_S: Final = 20
MISSING: Final = -1
_SAMPLES: Final = ENDS_S // SAMPLE_S
_OFFICES: Final = tuple(Office)
_WORKS_S: Final = dict.fromkeys(Office, 4 * MINUTE_S) | {Office.SHIFTS: 90}
_READS_S: Final = dict.fromkeys(Office, 90) | {
    Office.NIGHT_OWLS: 3 * MINUTE_S,
    Office.SHIFTS: 2 * MINUTE_S,
    Office.READERS: 15 * MINUTE_S,
}
"""The medians of how long somebody works, and then only reads."""


@dataclass(frozen=True, slots=True)
class DesktopWeek:
    """A desktop in a made-up week: its users, and what its counters show."""

    people: People
    values: dict[str, NDArray[np.int64]]
    """The values of each sample by counter; percentages in hundredths; MISSING = not measured."""

    def sample_ends(self, monday: int) -> NDArray[np.int64]:
        """When each sample ends, if the week's Monday begins at `monday`; both in seconds since 1970."""
        return monday + np.arange(1, _SAMPLES + 1, dtype=np.int64) * SAMPLE_S


def desktop_week(office: Office, seed: int, number: int) -> DesktopWeek:
    """The week of this desktop; equal arguments make equal weeks."""
    who = people(office, seed, number)
    rng = np.random.default_rng([_OFFICES.index(office), seed, number])
    load = _at_rest(rng)
    _visits(rng, who, load)
    for begin, until in who.renderings:
        at = _places(begin, until)
        load[CPU_MHZ][at] += 2500
        load[GPU_USE][at] += rng.uniform(6000, 9500, len(load[GPU_USE][at]))
    if office is Office.ZOMBIES and rng.random() < 0.5:
        _screen_saver(rng, who, load)
    load[GPU_USE] = np.minimum(load[GPU_USE], 10_000)
    values = {name: np.rint(series).astype(np.int64) for name, series in load.items()}
    if office is Office.ZOMBIES:
        values = _with_samples_missing(rng, values)
    return DesktopWeek(who, values)


def _at_rest(rng: Generator) -> dict[str, Values]:
    """The load without a user: a little CPU, short tasks of the system, and on some nights a scan of 40 minutes."""
    cpu = rng.lognormal(np.log(60), 0.3, _SAMPLES)
    tasks = rng.random(_SAMPLES) < 0.0005
    for smoothing_round in range(2):
        cpu[smoothing_round:] += np.where(
            tasks[: _SAMPLES - smoothing_round], rng.uniform(200, 1500, _SAMPLES - smoothing_round), 0
        )
    for day in range(DAYS):
        if rng.random() < 0.3:
            begin = day * DAY_S + int(rng.uniform(0, 24) * HOUR_S)
            cpu[_places(begin, begin + 40 * MINUTE_S)] += 1500
    none = np.zeros(_SAMPLES)
    return {CPU_MHZ: cpu, NETWORK: rng.poisson(2, _SAMPLES).astype(np.float64), GPU_USE: none, ENCODER: none.copy()}


def _visits(rng: Generator, who: People, load: dict[str, Values]) -> None:
    for visit in who.visits:
        now, works = visit.begin, True
        while now < visit.until:
            median_s, sigma = (_WORKS_S[who.office], 1.0) if works else (_READS_S[who.office], 1.2)
            until = min(visit.until, now + SAMPLE_S + int(rng.lognormal(np.log(median_s), sigma)))
            at = _places(now, until)
            _add(rng, load, at, works=works)
            now, works = until, not works


def _add(rng: Generator, load: dict[str, Values], at: slice, *, works: bool) -> None:
    count = len(load[CPU_MHZ][at])
    medians = ((CPU_MHZ, 1400, 90), (NETWORK, 350, 12), (GPU_USE, 1200, 60), (ENCODER, 700, 20))
    for name, working, reading in medians:
        load[name][at] += rng.lognormal(np.log(working if works else reading), 0.6, count)


def _screen_saver(rng: Generator, who: People, load: dict[str, Values]) -> None:
    """It runs while a session is there and its user is away, and is drawn by the GPU."""
    for session in who.sessions:
        at = _places(session.begin, session.until)
        load[GPU_USE][at] += rng.uniform(800, 1400, len(load[GPU_USE][at]))
        load[CPU_MHZ][at] += rng.uniform(300, 700, len(load[CPU_MHZ][at]))


def _with_samples_missing(rng: Generator, values: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """A third has MIG-backed vGPUs, of which there is no counter (VMware KB 319982); hosts are away for a while."""
    if rng.random() < 0.33:
        values = {name: series for name, series in values.items() if not name.startswith("gpu.")}
    for at in _absences(rng):
        for series in values.values():
            series[at] = MISSING
    return values


def _absences(rng: Generator) -> Iterable[slice]:
    for day in range(DAYS):
        if rng.random() < 0.15:
            begin = day * DAY_S + int(rng.uniform(0, 24) * HOUR_S)
            yield _places(begin, begin + int(rng.uniform(10, 90) * MINUTE_S))


def _places(begin: int, until: int) -> slice:
    """The samples of this time; one that it touches is of it."""
    return slice(begin // SAMPLE_S, -(-until // SAMPLE_S))
