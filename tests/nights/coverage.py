"""Coverage: how many nights reached each fault in each state: a stage of the engine, or the whereabouts of a VM.

Nights that draw their trouble blindly reach common pairs thousands of times and rare ones never. Here each night is
given events that are aimed: each strikes when its state is there. The first round aims at all pairs alike; each further
one at those that are still rare. What a fault cannot reach stands in `IMPOSSIBLE` with the reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gpuops.plan.rotation.ours import Whereabouts
from gpuops.sim.trouble.catalogue import catalogue, rules_of
from tests.nights.checkers import violations
from tests.nights.event import Event
from tests.nights.impossible import IMPOSSIBLE
from tests.nights.night import Nightly, Played
from tests.nights.schedule import ALL, EFFECTS, ENDS, USERS, schedule_of
from tests.nights.stages import Stage

Pair = tuple[str, str]
OFTEN: Final = 30
"""So many nights of a CI run reach each pair that can be reached."""
AIMS: Final = 5
"""Events of a night that are aimed."""
MOST: Final = 6000
"""Nights of a CI run."""
ROUND: Final = 400
CHUNK: Final = 10

_MAKES: Final = {
    Whereabouts.LOST.value: "V7",
    Whereabouts.GONE.value: "V4",
    Whereabouts.UNKNOWN.value: "V5",
    Whereabouts.FOREIGN.value: "V6",
}
"""What makes such a VM of one that is away."""
_BENT: Final[dict[str, dict[str, float]]] = {"N8": {"for_s": 600}, "K7": {"at_s": 0.0}, "C5": {"for_s": 600}}
"""What must end by itself, or is aimed at a moment and not at a login, as the checkers want to know."""
_BENT_IN: Final[dict[Pair, dict[str, str]]] = {
    ("V11", Whereabouts.LOST.value): {"happening": "vm.reverted_to_suspended"},
}
"""What would change nothing in that state."""

STATES: Final = (*(each.value for each in Stage if each is not Stage.NONE), *(each.value for each in Whereabouts))


def faults() -> tuple[str, ...]:
    """Every fault that nights know of; a new one is covered from then on."""
    return tuple(dict.fromkeys(ALL))


def impossible() -> dict[Pair, str]:
    """The pairs that cannot be reached, each with the reason."""
    return {
        (fault, state): reason
        for struck, states, reason in IMPOSSIBLE
        for fault in struck
        for state in states
        if fault in faults()
    }


@dataclass
class Coverage:
    """What many nights reached."""

    nights: int = 0
    reached: Counter[Pair] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    """Invariants that did not hold, each with its night."""

    def rare(self) -> list[Pair]:
        """The pairs that can be reached, and were not often enough, rarest first."""
        out = impossible()
        pairs = ((fault, state) for fault in faults() for state in STATES if (fault, state) not in out)
        return sorted((pair for pair in pairs if self.reached[pair] < OFTEN), key=lambda pair: self.reached[pair])

    def surprising(self) -> list[Pair]:
        """The pairs that are called impossible, and were reached."""
        return [pair for pair in impossible() if self.reached[pair]]


def cover(most: int, *, jobs: int) -> Coverage:
    """At most so many nights, until each pair was reached often enough."""
    found = Coverage()
    out = impossible()
    wanted = [(fault, state) for fault in faults() for state in STATES if (fault, state) not in out]
    with ProcessPoolExecutor(jobs) as pool:
        while wanted and found.nights < most:
            count = min(ROUND, most - found.nights)
            aims = list(_aims(wanted, count, found.nights))
            for reached, broken in pool.map(_nights, [aims[at : at + CHUNK] for at in range(0, len(aims), CHUNK)]):
                for each in reached:
                    found.reached.update(each)
                found.broken += broken
            found.nights += count
            wanted = found.rare()
    return found


def _aims(wanted: Sequence[Pair], count: int, first: int) -> Iterator[tuple[int, tuple[Pair, ...]]]:
    """Of so many nights each seed and what it aims at: every pair that is wanted about as often as any other."""
    rng = random.Random(f"{first}:pairs")
    left: list[Pair] = []
    for seed in range(first, first + count):
        if len(left) < AIMS:
            left += rng.sample(list(wanted), len(wanted))
        yield seed, tuple(left.pop(0) for _ in range(min(AIMS, len(left))))


def _nights(aims: Sequence[tuple[int, tuple[Pair, ...]]]) -> tuple[list[frozenset[Pair]], list[str]]:
    reached, broken = [], []
    for seed, pairs in aims:
        try:
            played = aimed_night(seed, pairs)
            broken += [f"{said} (aimed at {pairs}, seed {seed})" for said in violations(played)]
            reached.append(played.reached)
        except Exception as crash:  # of the engine: it is told, and other nights go on
            broken.append(f"{type(crash).__name__}: {crash} (aimed at {pairs}, seed {seed})")
    return reached, broken


def aimed_night(seed: int, pairs: Sequence[Pair]) -> Played:
    """The night of a seed's world in which these faults strike in these states, every second one beside its own."""
    rng = random.Random(f"{seed}:aimed")
    aims = [event for fault, state in pairs for event in (*_first(fault, state, rng), aimed(fault, state, rng))]
    small = 2 * seed  # the small half of the worlds: a state is there in each of them
    world = Nightly(small).played
    names = sorted(world.names.values())
    desktops, ml = ([name for name in names if name.startswith(kind)] for kind in ("desktop-", "ml-"))
    hosts = [host.name for host in world.world.by_type("HostSystem")]
    beside = schedule_of(small, desktops, ml, hosts) if seed % 2 else ()
    return Nightly(small, [*aims, *beside]).play()


def aimed(fault: str, state: str, rng: random.Random) -> Event:
    """The fault, in that state: at the first time, or at one of the next."""
    point = rng.choice([0, 0, 1, 3, 8])
    if fault in catalogue():
        bent = _BENT_IN.get((fault, state)) or _BENT.get(fault)
        return Event(fault, rules_of(fault, bent), state=state, point=point)
    if fault in USERS or fault in (*ENDS, "K10"):
        return Event(fault, state=state, point=point, at_s=rng.choice([60.0, 600.0]))
    return Event(fault, state=state, point=point, at_s=rng.choice([1.0, 600.0, 7200.0]))


def _first(fault: str, state: str, rng: random.Random) -> list[Event]:
    """What must happen first so that there is such a state."""
    if state == Stage.ADOPT:
        lost = {"method": rng.choice(EFFECTS[:3]), "skip": rng.randint(0, 4), "times": 3}
        return [Event("T2", rules_of("T2", lost)), Event("K1", state=Stage.SUBMIT, point=rng.randint(0, 4))]
    if (fault, state) == ("V11", Whereabouts.CHANGING):  # nobody reverts a VM that has a task: it may only seem to
        return [Event("T1", rules_of("T1", {"method": "SuspendVM_Task", "times": 5}))]
    makes = _MAKES.get(state)
    return [Event(makes, rules_of(makes), state=Whereabouts.AWAY, point=rng.randint(0, 3))] if makes else []


def table(found: Coverage) -> str:
    """The pairs in Markdown: a line a fault, a column a state."""
    out = impossible()
    lines = [
        f"| Fault | {' | '.join(STATES)} |",
        f"|---|{'---|' * len(STATES)}",
        *(
            f"| {fault} | "
            + " | ".join("-" if (fault, state) in out else str(found.reached[fault, state]) for state in STATES)
            + " |"
            for fault in faults()
        ),
    ]
    return "\n".join(lines)


def results(found: Coverage) -> str:
    """The whole of what is kept in RESULTS.md."""
    rare = [f"{fault} in {state}: {found.reached[fault, state]}" for fault, state in found.rare()]
    reasons: dict[str, list[str]] = {}
    for (fault, state), reason in impossible().items():
        reasons.setdefault(reason, []).append(f"{fault}/{state}")
    return "\n".join(
        [
            "# What the nights reach",
            "",
            f"Made by `python -m tests.nights coverage`: in how many of {found.nights} nights each fault took effect",
            f"in each state of the engine and at each whereabouts of a VM. At least {OFTEN} are wanted; - cannot be.",
            "",
            table(found),
            "",
            f"Below {OFTEN}: {len(rare)}." + "".join(f"\n- {each}" for each in rare),
            "",
            "Cannot be reached:",
            *(f"- {reason}: {len(pairs)} pairs" for reason, pairs in reasons.items()),
            "",
        ]
    )
