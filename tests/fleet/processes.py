"""The processes of a fleet: simulated vCenters on the clock of the day, each behind a door, and runners on one clock.

Runners and their turns show one time of day: the window closes so many seconds after the first of them was started. The
vCenters, which were started before that, show an earlier one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpuops.clock import machine_time
from tests.fleet.door import Door
from tests.fleet.world import Size, policy, scenario
from tests.harness.fleet import Fleet, Runner, Site, serving

CLOSES: Final = clock_time(22, 9)
"""A minute before a full ten minutes: a return that fails is offered again a minute later."""
ANY: Final = clock_time(0)


@dataclass(slots=True)
class DisturbedFleet(Fleet):
    """A fleet on one clock, whose vCenters can be cut off."""

    ahead_s: float = 0.0
    """By so much its time of day is ahead of this machine's."""
    later_s: float = 0.0
    """By so much it is ahead of the vCenters' time."""
    doors: dict[str, Door] = field(default_factory=dict)
    """By name of the site."""

    def seconds_ahead(self, at: clock_time) -> float:
        """Whatever `at` is: its clock shows what those of all others do."""
        return self.ahead_s

    def port_of(self, site: Site) -> int:
        """The port of the door in front of that vCenter."""
        if site.name not in self.doors:
            self.doors[site.name] = Door(urlsplit(site.ready.url).port or 443)
        return self.doors[site.name].port

    def close_after(self, seconds: float) -> None:
        """From now on its clocks show that the window closes after so many seconds."""
        before = self.ahead_s
        self.ahead_s = _ahead_s(seconds)
        self.later_s += self.ahead_s - before

    def now(self) -> datetime:
        """The time of day of the fleet."""
        return machine_time() + timedelta(seconds=self.ahead_s)


def sites_played(runner: Runner) -> list[str]:
    """The vCenters of which a process of that runner runs now (proc(5))."""
    site_names = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group = os.getpgid(int(folder.name))
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if group == runner.process.pid and "rotate" in words and "--vcenter" in words:
            site_names.add(words[words.index("--vcenter") + 1])
    return sorted(site_names)


@contextmanager
def disturbed_fleet(folder: Path, url: str, sizes: list[Size], program: str = "gpuops") -> Iterator[DisturbedFleet]:
    """A vCenter of each size. No process is left at the end."""
    new_fleet = DisturbedFleet(folder, url, [], program=program, ahead_s=_ahead_s(0))
    worlds = [
        (scenario(size), policy(f"nights-{number}", f"{CLOSES:%H:%M}", size)) for number, size in enumerate(sizes)
    ]
    try:
        with serving(new_fleet, worlds, "--clock", "real", environment=new_fleet.environment(ANY, "sim")):
            yield new_fleet
    finally:
        for door in new_fleet.doors.values():
            door.close()


def _ahead_s(night_s: float) -> float:
    now = machine_time()
    closes = datetime.combine(now.date(), CLOSES, UTC)
    return (closes - now) / timedelta(seconds=1) - night_s
