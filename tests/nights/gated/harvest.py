"""Harvest: what calm gated nights get, beside a planner that knows every session of the night beforehand.

That planner takes the same desktops from the same world without a gate, and leaves those alone to which somebody comes
while the night takes; it needs no second look and loses no time. What is counted are the hours that ML VMs run until
the window closes, on however large a share of a GPU. A user who comes later gets another desktop in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.sim.state.vm_state import Power
from tests.nights.gated.night import GatedNight, GatedPlayed
from tests.nights.gated.schedule import Trouble, schedule_of
from tests.nights.gated.world import gated_site
from tests.nights.world.worlds import CLOSES, EVENING, Site

TAKES: Final = timedelta(minutes=15)
"""In which a night of these sizes takes all that it takes."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """Hours that ML VMs ran on freed GPUs."""

    hours: float
    possible: float
    """What the planner that knows all sessions gets."""


def ml_hours(gated: GatedPlayed) -> float:
    """How long the ML VMs of the night ran, all together, until its window closed."""
    since: dict[str, datetime] = {}
    total = timedelta()
    for change in gated.night.world.ledger:
        power = change.after.get("power")
        if power is None or not gated.night.names.get(change.moid, "").startswith("ml-") or change.at > CLOSES:
            continue
        if power == Power.ON:
            since.setdefault(change.moid, change.at)
        elif change.moid in since:
            total += change.at - since.pop(change.moid)
    return (total + sum((CLOSES - at for at in since.values()), timedelta())).total_seconds() / 3600


class KnowingNight(GatedNight):
    """The night of the planner that knows all sessions: a desktop whose user comes while VMs are suspended is in use
    from the start, and the others stay unused.
    """

    def __init__(self, seed: int, site: Site, used: frozenset[str]) -> None:
        super().__init__(seed, (), (), site)
        for vm in self.world.by_type("VirtualMachine"):
            if vm.name in used:
                vm.state.console_connections = 1
                vm.touch("runtime", "summary")


def harvest_of(played: GatedPlayed) -> Harvest:
    """Of a calm night that was played."""
    seed = played.night.seed
    names = played.night.names
    used = frozenset(
        names[stay.moid] for stay in played.pod.stays if stay.moid in names and stay.since <= EVENING + TAKES
    )
    knowing = KnowingNight(seed, gated_site(seed, gated=False), used).play_gated()
    return Harvest(ml_hours(played), ml_hours(knowing))


def play_ungated(seed: int, troubles: tuple[Trouble, ...] | None = None) -> GatedPlayed:
    """The night of a seed, with the same people, under a policy that says its pool is parked: its window is open."""
    site = gated_site(seed, gated=False)
    desktops = [f"desktop-{number:03}" for number in range(1, site.size.desktops + 1)]
    people = tuple(trouble for trouble in (troubles or schedule_of(seed, desktops)) if trouble.kind in ("logon", "rdp"))
    return GatedNight(seed, people, (), site).play_gated()
