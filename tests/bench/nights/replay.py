"""Nights of 500 made-up desktops, replayed: what thresholds harvest and whom they disturb, and what a replay costs.

The weeks are made up by `gpuops/sim/state/desktop_people.py` and `desktop_load.py`, whose figures nobody has measured:
a curve shows how thresholds trade, not what an office would see. Thresholds were looked for on three kinds of offices;
shifts came after that. A false idle is true here, not inferred from counters: somebody was at the desktop when it was
taken, or the user of its session came back within ten minutes. Hours count until somebody comes, or it is due.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from gpuops.extras.observe.store import Measurements
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement import GPU_USE
from gpuops.model.nights.rotation import IdleRule
from gpuops.sim.state.desktop_people import Office
from tests.bench.measure import interleave, python
from tests.bench.verdict import Figure, Result
from tests.desktop_load import ENCODER, NETWORK
from tests.made_weeks import MONDAY, SUNDAY, VCENTER, JudgedNight, MadeDesktop, Truth, judged, made_desktops, nights

DESKTOPS: Final = 500
SEED: Final = 1
ROUNDS: Final = 3
OTHERS: Final = ((NETWORK, 50), (ENCODER, 100), (GPU_USE, 200))
"""50 kB/s, 1 % of the encoder, 2 % of the GPU."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """A point of the curve."""

    mhz: int
    minutes: int
    others: bool = False
    """Network, encoder and GPU as well."""
    sessions_known: bool = False
    disconnected_minutes: int | None = None
    """From then on a disconnected session keeps its desktop no more."""

    @property
    def rule(self) -> IdleRule:
        required = {Source.COUNTERS, Source.BROKER} if self.sessions_known else {Source.COUNTERS}
        timeout_s = self.disconnected_minutes * 60 if self.disconnected_minutes is not None else None
        others = OTHERS if self.others else ()
        return IdleRule(self.mhz, self.minutes * 60, others, frozenset(required), disconnected_timeout_s=timeout_s)

    def __str__(self) -> str:
        told = f"CPU below {self.mhz} MHz" + (", three others," if self.others else "") + f" for {self.minutes} min"
        told += ", sessions known" if self.sessions_known else ""
        return told if self.disconnected_minutes is None else f"{told}, disconnected {self.disconnected_minutes} min"


CURVE: Final = (
    *(Thresholds(500, minutes) for minutes in (5, 15, 30, 55)),
    *(Thresholds(mhz, 15) for mhz in (250, 1000)),
    *(Thresholds(500, minutes, others=True) for minutes in (15, 30, 55)),
    Thresholds(500, 15, sessions_known=True),
    *(Thresholds(500, 15, sessions_known=True, disconnected_minutes=minutes) for minutes in (60, 240)),
)


def run() -> Iterator[Result]:
    """The curve for each kind of office, then CPU and memory of a replay from the store."""
    for office in Office:
        desktops = list(made_desktops(office, SEED, DESKTOPS))
        figures = [figure for point in CURVE for figure in _point(point, desktops)]
        yield Result(f"{office}: {DESKTOPS} desktops, {len(nights())} nights from 20:00, back by 06:00", tuple(figures))
    yield _cost()


def _point(point: Thresholds, desktops: list[MadeDesktop]) -> Iterator[Figure]:
    found = [
        judged(each, point.rule, night, sessions_known=point.sessions_known) for each in desktops for night in nights()
    ]
    taken = [each for each in found if each.truth is not None]
    false = [each for each in taken if each.truth is not None and each.truth.false_idle]
    hours = sum(each.free_s for each in taken) / 3600 / len(found)
    most = 0.0 if point.sessions_known and point.disconnected_minutes is None else None
    yield Figure(f"{point}: false idle", _percent(false, taken), "% of taken", most)
    yield Figure(f"{point}: harvested", hours, "h a desktop and night")
    if point.sessions_known:
        logons = [each for each in taken if each.truth is Truth.LOGON_SOON]
        yield Figure(f"{point}: a new logon within 10 min", _percent(logons, taken), "% of taken")
    elif point == Thresholds(500, 15):
        unseen = [each for each in false if each.replayed.false_idle is None]
        yield Figure(f"{point}: false idles of which a replay shows nothing", _percent(unseen, false), "% of them")


def _percent(part: list[JudgedNight], of: list[JudgedNight]) -> float:
    return 100 * len(part) / len(of) if of else 0.0


def _cost() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        begin = int(MONDAY.timestamp())
        with Measurements.open(Path(folder), "", VCENTER) as store:
            store.write(begin, {each.vm.ref: each.block for each in made_desktops(Office.OFFICE_HOURS, SEED, DESKTOPS)})
            store.note_observed(begin, int(SUNDAY.timestamp()))
        doer = python("replay", "-m", "tests.bench.doers.replay", folder, str(DESKTOPS))
        rounds = interleave([doer], ROUNDS)
    said = [usage.said for usage in rounds[doer.name]]
    return Result(
        f"a replay of {DESKTOPS} desktops in {len(nights())} nights from the store, by 4 counters",
        (
            Figure("CPU, imports left out", median(each["read_cpu_s"] for each in said), "CPU s"),
            Figure("peak memory of the process", median(each["peak_rss_mib"] for each in said), "MiB"),
        ),
        rounds,
    )
