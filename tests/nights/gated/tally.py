"""Tally: many gated nights, what they come to, and the part of RESULTS.md that says so.

The harvest is what calm gated nights get, beside a planner that knows every session of the night beforehand. That
planner takes the same desktops from the same world without a gate, and leaves those alone to which somebody comes while
the night takes; it needs no second look and loses no time. What is counted are the hours that ML VMs run until the
window closes, on however large a share of a GPU. A user who comes later gets another desktop in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Self

from gpuops.sim.state.vm_state import Power
from tests.nights.gated.checkers import cuts, violations
from tests.nights.gated.night import GatedNight, GatedPlayed, play
from tests.nights.gated.schedule import KINDS, ROW, gated_site, is_calm, schedule_of
from tests.nights.measuring.tally import Timed, summed
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


def play_ungated(seed: int) -> GatedPlayed:
    """The night of a seed, with the same people, under a policy that says its pool is parked: its window is open."""
    site = gated_site(seed, gated=False)
    desktops = [f"desktop-{number:03}" for number in range(1, site.size.desktops + 1)]
    people = tuple(trouble for trouble in schedule_of(seed, desktops) if trouble.kind in ("logon", "rdp"))
    return GatedNight(seed, people, (), site).play_gated()


LEAST_HARVEST: Final = 0.95
BEGIN: Final = "<!-- gates: made by `python -m tests.nights gates --keep` -->"
END: Final = "<!-- gates: end -->"


@dataclass
class GatedTally(Timed):
    """What many gated nights come to."""

    nights: int = 0
    suspends: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    """Sessions that were there at the last look, and whose desktop was suspended: none may be."""
    between: int = 0
    """Sessions of the broker that began between the last look and the suspend."""
    by_rdp: int = 0
    """The same, straight to the guest, and seen by no command."""
    rdp_back: int = 0
    """The same where an `idle_command` sees them: their desktops were back at once."""
    longest_s: float = 0.0
    """From a suspend under a session of the broker to the resume."""
    calm: int = 0
    hours: float = 0.0
    possible: float = 0.0
    ungated_suspends: int = 0
    ungated_cuts: int = 0
    """Sessions of any kind under which a night without a gate, with the same people, suspended."""
    violations: list[str] = field(default_factory=list)

    def add(self, addend: Self) -> None:
        longest_s = max(self.longest_s, addend.longest_s)
        super().add(addend)
        self.longest_s = longest_s

    @property
    def harvest(self) -> float:
        """What calm nights get of what a planner gets that knows all sessions; 1 where there is nothing to get."""
        return self.hours / self.possible if self.possible else 1.0

    def __str__(self) -> str:
        rows: Counter[str] = Counter()
        for kind, count in self.struck.items():
            rows[ROW.get(kind, kind)] += count
        return "\n".join(
            [
                f"{self.nights} nights, {self.suspends} suspends, {len(self.violations)} violations",
                (
                    f"{60 * self.nights / max(self.wall_s, 1e-9):.0f} nights a minute "
                    f"({60 * self.nights / max(self.cpu_s, 1e-9):.0f} per minute of one core)"
                ),
                (
                    f"sessions at the last look that were cut: {self.seen}; begun between it and the suspend: "
                    f"{self.between} by the broker (back after {self.longest_s:.0f} s at most), {self.by_rdp} by RDP, "
                    f"and {self.rdp_back} where a command sees them, back as well"
                ),
                f"without a gate: {self.ungated_cuts} sessions cut in {self.ungated_suspends} suspends",
                f"harvest of {self.calm} calm nights: {100 * self.harvest:.1f} % of {self.possible:.0f} hours",
                "struck: " + " ".join(f"{row} {count}" for row, count in sorted(rows.items())),
                *self.violations[:50],
            ]
        )


def tally(seeds: Sequence[int], *, jobs: int) -> GatedTally:
    """These nights, in so many processes."""
    return summed(GatedTally, _add, seeds, jobs)


def _add(tally_of_nights: GatedTally, seed: int) -> None:
    tally_of_nights.nights += 1
    try:
        gated = play(seed)
        broken_invariants = violations(gated)
    except Exception as crash:  # of the engine: as bad as an invariant that does not hold, and other nights go on
        tally_of_nights.violations.append(f"{type(crash).__name__}: {crash} {_replay_command(seed)}")
        return
    tally_of_nights.violations += [f"{violation} {_replay_command(seed)}" for violation in broken_invariants]
    tally_of_nights.suspends += len(gated.suspends)
    tally_of_nights.struck.update(gated.struck)
    for cut in cuts(gated):
        troubled_look = cut.stay.by_rdp and bool(gated.night.events)
        tally_of_nights.seen += cut.seen and not troubled_look
        tally_of_nights.between += not cut.seen and not cut.stay.by_rdp
        past_the_look = cut.stay.by_rdp and (troubled_look or not cut.seen)
        tally_of_nights.by_rdp += past_the_look and not gated.watched
        tally_of_nights.rdp_back += past_the_look and gated.watched
        if not (cut.seen or cut.stay.by_rdp or gated.night.events) and cut.back_at is not None:
            tally_of_nights.longest_s = max(tally_of_nights.longest_s, (cut.back_at - cut.suspended.at).total_seconds())
    if not is_calm(seed):
        return
    harvest, open_ = harvest_of(gated), play_ungated(seed)
    tally_of_nights.calm += 1
    tally_of_nights.hours += min(harvest.hours, harvest.possible)
    tally_of_nights.possible += harvest.possible
    tally_of_nights.ungated_suspends += len(open_.suspends)
    tally_of_nights.ungated_cuts += len(cuts(open_))


def _replay_command(seed: int) -> str:
    return f"(again: python -m tests.nights gate {seed})"


def section(total: GatedTally) -> str:
    """The part of RESULTS.md that is of gated nights."""
    struck = [(kind, ROW.get(kind, "-"), total.struck[kind]) for kind in KINDS]
    return "\n".join(
        [
            BEGIN,
            "## Nights behind a broker's gate",
            "",
            f"Made by `python -m tests.nights gates --nights {total.nights} --keep`: small sites whose desktops are",
            "machines of a simulated Horizon pod, users who come by the broker and by RDP at any moment, and a broker",
            "that is away, slow, lies or loses its replies; one night in three also has all that befalls vCenter,",
            "another one kills alone. One in eight is calm: people come, and nothing is wrong.",
            "",
            "| What | |",
            "|---|---|",
            f"| nights, suspends in them | {total.nights}, {total.suspends} |",
            f"| invariants broken | {len(total.violations)} |",
            f"| desktops suspended under a session that was there at the last look | {total.seen} |",
            f"| sessions by the broker that began between that look and the suspend, back at once | {total.between} |",
            f"| the longest until it was back | {total.longest_s:.0f} s |",
            (
                f"| sessions by RDP that began between that look and the suspend, back at once by `idle_command` | "
                f"{total.rdp_back} |"
            ),
            f"| the same without an `idle_command`: the desktop stays suspended | {total.by_rdp} |",
            (
                f"| the same people without a gate (calm nights): sessions cut, of suspends | "
                f"{total.ungated_cuts} of {total.ungated_suspends} |"
            ),
            (
                f"| harvest of {total.calm} calm nights, of what is got by who knows all sessions | "
                f"{100 * total.harvest:.1f} % |"
            ),
            f"| nights per minute of one core | {60 * total.nights / max(total.cpu_s, 1e-9):.0f} |",
            "",
            "| What struck | Row of the catalogue | Times |",
            "|---|---|---|",
            *(f"| {kind} | {row} | {count} |" for kind, row, count in struck),
            END,
        ]
    )
