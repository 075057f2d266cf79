"""Tally: many gated nights, what they come to, and the part of RESULTS.md that says so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from tests.nights.gated.checkers import cuts, violations
from tests.nights.gated.harvest import harvest_of, ungated
from tests.nights.gated.night import play
from tests.nights.gated.schedule import KINDS, ROW, is_calm
from tests.nights.measuring.results import FILE
from tests.nights.measuring.tally import Summed, in_processes, one_by_one

CHUNK: Final = 10
LEAST_HARVEST: Final = 0.95
BEGIN: Final = "<!-- gates: made by `python -m tests.nights gates --keep` -->"
END: Final = "<!-- gates: end -->"


@dataclass
class GatedTally(Summed):
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
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Self) -> None:
        longest_s = max(self.longest_s, other.longest_s)
        super().add(other)
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
    found, began = GatedTally(), time.monotonic()
    for each in in_processes(_nights, seeds, jobs, CHUNK):
        found.add(each)
    found.wall_s = time.monotonic() - began
    return found


def _nights(seeds: Sequence[int]) -> GatedTally:
    found = GatedTally()
    found.cpu_s = one_by_one(partial(_add, found), seeds)
    return found


def _add(found: GatedTally, seed: int) -> None:
    found.nights += 1
    try:
        gated = play(seed)
        said = violations(gated)
    except Exception as crash:  # of the engine: as bad as an invariant that does not hold, and other nights go on
        found.violations.append(f"{type(crash).__name__}: {crash} {_again(seed)}")
        return
    found.violations += [f"{each} {_again(seed)}" for each in said]
    found.suspends += len(gated.suspends)
    found.struck.update(gated.struck)
    for cut in cuts(gated):
        troubled_look = cut.stay.by_rdp and bool(gated.night.events)
        found.seen += cut.seen and not troubled_look
        found.between += not cut.seen and not cut.stay.by_rdp
        past_the_look = cut.stay.by_rdp and (troubled_look or not cut.seen)
        found.by_rdp += past_the_look and not gated.watched
        found.rdp_back += past_the_look and gated.watched
        if not (cut.seen or cut.stay.by_rdp or gated.night.events) and cut.back_at is not None:
            found.longest_s = max(found.longest_s, (cut.back_at - cut.suspended.at).total_seconds())
    if not is_calm(seed):
        return
    harvest, open_ = harvest_of(gated), ungated(seed)
    found.calm += 1
    found.hours += min(harvest.hours, harvest.possible)
    found.possible += harvest.possible
    found.ungated_suspends += len(open_.suspends)
    found.ungated_cuts += len(cuts(open_))


def _again(seed: int) -> str:
    return f"(again: python -m tests.nights gate {seed})"


def section(found: GatedTally) -> str:
    """The part of RESULTS.md that is of gated nights."""
    struck = [(kind, ROW.get(kind, "-"), found.struck[kind]) for kind in KINDS]
    return "\n".join(
        [
            BEGIN,
            "## Nights behind a broker's gate",
            "",
            f"Made by `python -m tests.nights gates --nights {found.nights} --keep`: small sites whose desktops are",
            "machines of a simulated Horizon pod, users who come by the broker and by RDP at any moment, and a broker",
            "that is away, slow, lies or loses its replies; one night in three also has all that befalls vCenter,",
            "another one kills alone. One in eight is calm: people come, and nothing is wrong.",
            "",
            "| What | |",
            "|---|---|",
            f"| nights, suspends in them | {found.nights}, {found.suspends} |",
            f"| invariants broken | {len(found.violations)} |",
            f"| desktops suspended under a session that was there at the last look | {found.seen} |",
            f"| sessions by the broker that began between that look and the suspend, back at once | {found.between} |",
            f"| the longest until it was back | {found.longest_s:.0f} s |",
            (
                f"| sessions by RDP that began between that look and the suspend, back at once by `idle_command` | "
                f"{found.rdp_back} |"
            ),
            f"| the same without an `idle_command`: the desktop stays suspended | {found.by_rdp} |",
            (
                f"| the same people without a gate (calm nights): sessions cut, of suspends | "
                f"{found.ungated_cuts} of {found.ungated_suspends} |"
            ),
            (
                f"| harvest of {found.calm} calm nights, of what is got by who knows all sessions | "
                f"{100 * found.harvest:.1f} % |"
            ),
            f"| nights per minute of one core | {60 * found.nights / max(found.cpu_s, 1e-9):.0f} |",
            "",
            "| What struck | Row of the catalogue | Times |",
            "|---|---|---|",
            *(f"| {kind} | {row} | {count} |" for kind, row, count in struck),
            END,
        ]
    )


def write(found: GatedTally) -> None:
    """Puts the part into RESULTS.md; the rest of the file stays."""
    before = FILE.read_text(encoding="utf-8")
    if BEGIN not in before:
        before = f"{before.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, _, rest = before.partition(BEGIN)
    FILE.write_text(f"{head}{section(found)}{rest.partition(END)[2]}", encoding="utf-8")
