"""Desktops that come back ahead of their users: a week of a pool of 500 in four made-up offices, by what `ready` says.

The weeks are made up by `gpuops/sim/state/desktop_people.py` and `desktop_load.py`, whose figures nobody has measured,
and weeks of one office differ by chance alone: no holidays, no trend. Real ones are harder to foresee. A floating pool
under a watch whose ML queue never ends: all that `ready` does not keep is taken after 15 minutes unused. ML VMs stop
within 120 s, and then 8 desktops at a time come back in 180 s each (`UNMEASURED_RESUME_S`), batch after batch.
A return counts when somebody then uses the desktop; it was ready when it was there before them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Final

from gpuops.extras.observe.demand import in_use
from gpuops.extras.observe.packing import Block
from gpuops.extras.observe.rolling_up import FINE_S
from gpuops.extras.observe.store import Measurements
from gpuops.model.nights.rotation import IdleRule
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.state.desktop_people import DAYS, Office
from tests.bench.verdict import Figure, Result
from tests.made_forecasts import KEPT, MadePool, Rule, made_pool, mean_error, played
from tests.made_weeks import MONDAY, SUNDAY, VCENTER, made_desktops, policy_of

DESKTOPS: Final = 500
SEED: Final = 11
"""`ahead_min` and `at_least` were looked for on seed 1."""
AHEAD: Final = timedelta(minutes=90)
WEEK_BEFORE: Final = timedelta(days=8)
DAY_BEFORE: Final = timedelta(days=1)
LATE: Final = 20.0
"""Percent of returns that may come after their user."""
RULES: Final = {
    "10": Rule(10),
    "100": Rule(100),
    "10, forecast 30 min ahead": Rule(10, timedelta(minutes=30)),
    "10, forecast 60 min ahead": Rule(10, timedelta(minutes=60)),
    "10, forecast 90 min ahead": Rule(10, AHEAD),
    "2, forecast 90 min ahead": Rule(2, AHEAD),
    "10, the week before 90 min ahead": Rule(10, AHEAD, WEEK_BEFORE),
    "10, the day before 90 min ahead": Rule(10, AHEAD, DAY_BEFORE),
}
JUDGED: Final = "10, forecast 90 min ahead"


def run() -> Iterator[Result]:
    for office in Office:
        pool = made_pool(office, SEED, DESKTOPS)
        yield Result(f"{office}: {DESKTOPS} desktops, one week after two", (*_errors(pool), *_rules(pool)))
    yield _cost()


def _errors(pool: MadePool) -> Iterator[Figure]:
    for said, kept in (("two weeks", KEPT), ("the week before", WEEK_BEFORE), ("the day before", DAY_BEFORE)):
        yield Figure(f"a forecast by {said} is off by", mean_error(pool, kept), "desktops")


def _rules(pool: MadePool) -> Iterator[Figure]:
    for said, rule in RULES.items():
        found = played(pool, rule)
        late = 100 - 100 * found.returned_before / found.returned
        yield Figure(f"ready {said}: returns after their user", late, "%", LATE if said == JUDGED else None)
        waited = 100 - 100 * found.found_ready / found.logons
        yield Figure(f"ready {said}: logons that found none ready", waited, "%")
        yield Figure(f"ready {said}: harvested", found.away_s / 3600 / DESKTOPS / 7, "h a desktop and day")


def _cost() -> Result:
    """Of reading 14 days of the store, as `rotate plan` does once, and a watch each hour."""
    policy = policy_of(IdleRule(500, 900))
    desktops = list(made_desktops(Office.OFFICE_HOURS, SEED, DESKTOPS))
    days = DAYS - 1
    with tempfile.TemporaryDirectory() as folder:
        with Measurements.open(Path(folder), "", VCENTER) as store:
            for week in range(2):
                begin = int(MONDAY.timestamp()) - week * days * 86_400
                store.write(begin, {each.vm.ref: _week(each.block, days) for each in desktops})
            store.note_observed(int(MONDAY.timestamp()) - days * 86_400, int(MONDAY.timestamp()) + days * 86_400)
        inventory = Inventory(
            VCENTER, "8.0.3.0", SUNDAY - timedelta(days=1), vms={each.vm.ref: each.vm for each in desktops}
        )
        began_s = process_time()
        histories = in_use(Path(folder), "", inventory, policy)
        took_s = process_time() - began_s
    assert len(histories["office"].in_use) == 2 * days * 96, "two weeks were counted"
    return Result(f"counting 14 days of {DESKTOPS} desktops", (Figure("CPU", took_s, "s"),))


def _week(block: Block, days: int) -> Block:
    steps = days * 86_400 // FINE_S
    return Block(steps, {name: values[:steps] for name, values in block.series.items()})
