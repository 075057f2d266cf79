"""The moment, the time zone and the locale in which a run of the tests takes place.

Tests that run at the real moment run in working hours and in UTC, and never see what fails at night, on the day of a
clock change or in another language. `make test` takes place at one awkward moment, the same each time (FIXED).
`make long` draws its surroundings from a seed that pytest prints; `--surroundings SEED` draws them again.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

AWKWARD: Final = (
    ("2027-03-28 01:59:30", "Europe/Berlin"),  # 02:00 becomes 03:00
    ("2026-10-25 02:59:30", "Europe/Berlin"),  # 03:00 becomes 02:00
    ("2027-03-14 01:59:30", "America/New_York"),
    ("2026-11-01 01:59:30", "America/New_York"),
    ("2026-10-03 22:00:00", "Australia/Lord_Howe"),  # an evening whose night loses half an hour
    ("2026-12-31 23:59:30", "Europe/Berlin"),
    ("2026-12-31 23:59:30", "UTC"),
    ("2028-02-29 12:00:00", "Asia/Kathmandu"),  # 5 h 45 min ahead of UTC
    ("2028-02-29 23:59:30", "America/St_Johns"),
    ("2027-01-01 00:00:30", "Pacific/Kiritimati"),  # 14 h ahead: still the last day of the year in UTC
    ("2027-05-17 07:00:00", "Pacific/Kiritimati"),
    ("2027-05-17 12:00:00", "Pacific/Pago_Pago"),  # 11 h behind
)
"""By the clock on the wall there; of an hour that comes twice, the first."""

EARLIEST: Final = datetime(2026, 1, 1, tzinfo=UTC)
DAYS: Final = 10 * 365


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run of the tests believes of where and when it runs."""

    seed: int
    moment: datetime
    zone: str
    locale: str

    def __str__(self) -> str:
        local_time = self.moment.astimezone(ZoneInfo(self.zone))
        return f"{local_time:%Y-%m-%d %H:%M:%S} {self.zone}, locale {self.locale} (again: --surroundings {self.seed})"


FIXED: Final = Surroundings(0, datetime(2027, 3, 28, 0, 59, 30, tzinfo=UTC), "Europe/Berlin", "C")
"""01:59:30 in Berlin, half a minute before the clock change: the night that is played next is an hour shorter."""


def drawn(seed: int, locales: tuple[str, ...]) -> Surroundings:
    """Return the surroundings of a seed; seed 0 stands for FIXED.

    Two in three are awkward, the others are any minute of ten years anywhere.
    """
    if seed == FIXED.seed:
        return FIXED
    rng = random.Random(seed)
    if rng.randrange(3):
        local, zone = rng.choice(AWKWARD)
        moment = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    else:
        moment = EARLIEST + timedelta(days=rng.randrange(DAYS), minutes=rng.randrange(24 * 60))
        zone = rng.choice(sorted(available_timezones() - {"localtime", "Factory"}))
    return Surroundings(seed, moment, zone, rng.choice(locales))


@cache
def locales_here() -> tuple[str, ...]:
    """The locales that this machine has; C at least."""
    try:
        output = subprocess.run(["locale", "-a"], capture_output=True, encoding="utf-8", check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ("C",)
    return tuple(sorted(output.split())) or ("C",)
