"""Aiming: which faults strike a night in which states, and what must happen first so that there are such states.

A night leads with one pair that is missing, and takes more along, in as many states as such a night has. What hardly
disturbs a run strikes with others; what stops it, or takes a VM or a host away, has a moment of its own. Most of these
nights are of the prepared site, some of a world as `play` draws it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.plan.core.steps import (
    PowerOnVm,
    ResumeVm,
    SetAttribute,
    SetVmDrs,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.catalogue import catalogue, rules_of
from gpuops.sim.fault_injection.rule import Effect, Rule
from tests.nights.event import GIVEN_UP, Event
from tests.nights.impossible import OF_TASKS, STARTS, SUSPENDS
from tests.nights.night import Nightly
from tests.nights.prepared import PERSISTENT, everywhere, prepared_site
from tests.nights.reach import REFUSALS, is_light
from tests.nights.schedule import ALL, HANGS, HOSTS, MACHINES
from tests.nights.stages import ADOPT, LEASE, LOOK, RECORDS, SUBMITS, WAIT

Pair = tuple[str, str]
"""A fault, and a stage of the engine or the whereabouts of a VM."""
AIMS: Final = 20
"""Events of a night that are aimed and need a moment of their own."""
LIGHT_AIMS: Final = 30
"""Those that hardly disturb a run."""
IN_ONE_STATE: Final = 3
"""Of those that need a moment of their own."""
HARD: Final = ("T2", "T6", "T7", *HOSTS, "T12", "T13", "N6", "N7", "N8", "G10", "K10", HANGS)
"""What changes most of the night after it."""
HARD_AIMS: Final = 2
"""Of those."""
DRAWN: Final = 8
"""One night in so many is of a world as `play` draws it, with its own trouble beside what is aimed."""
_BENT: Final[dict[str, dict[str, Any]]] = {
    "N6": {"times": 3},
    "N8": {"for_s": 600},
    "K7": {"at_s": 0.0},
    "C5": {"for_s": 600},
}
"""What must end by itself, or is aimed at a moment and not at a login."""
_BENT_IN: Final[dict[Pair, dict[str, Any]]] = {
    ("V11", Whereabouts.LOST.value): {"happening": "vm.reverted_to_suspended"},
}
"""What would change nothing in that state."""
FOR_GOOD: Final = ("T13",)
"""After it no run gets any further."""


def aimed_event(fault: str, state: str = "", point: int = 0, at_s: float = 0.0) -> Event:
    bent = _BENT_IN.get((fault, state)) or _BENT.get(fault)
    rules = rules_of(fault, bent) if fault in catalogue() else ()
    return Event(fault, rules, state=state, point=point, at_s=at_s)


LIGHT: Final = tuple(fault for fault in dict.fromkeys(ALL) if is_light(aimed_event(fault)))


def aims(missing: Mapping[Pair, int], count: int, first: int) -> Iterator[tuple[int, tuple[Pair, ...]]]:
    """Of so many nights each seed and what it aims at: the more a pair is missing, the more often."""
    rng = random.Random(f"{first}:pairs")
    pairs, weights = list(missing), list(missing.values())
    for seed in range(first, first + count):
        [leading] = rng.choices(pairs, weights)
        yield seed, _beside(leading, pairs, rng)


def _beside(leading: Pair, pairs: Sequence[Pair], rng: random.Random) -> tuple[Pair, ...]:
    """The pair, and as many others as such a night can meet: of what is light many, the rest in states as different as
    there are, for each needs a moment of its own; what no run gets past soon comes last."""
    kind = _kind(leading[1])
    others = [pair for pair in pairs if pair != leading and _kind(pair[1]) in (kind, kind and "")]
    rng.shuffle(others)
    light = [pair for pair in others if pair[0] in LIGHT][:LIGHT_AIMS]
    chosen, hard = [leading], int(leading[0] in HARD)
    of_state = Counter([leading[1]])
    for most in range(1, IN_ONE_STATE + 1):
        for pair in others:
            if pair[0] in LIGHT or pair in chosen or of_state[pair[1]] >= most or len(chosen) > AIMS:
                continue
            if pair[0] in HARD:
                if hard == HARD_AIMS:
                    continue
                hard += 1
            of_state[pair[1]] += 1
            chosen.append(pair)
    return (leading, *light, *sorted(chosen[1:], key=lambda pair: (pair[0] in HARD, pair[0] in FOR_GOOD)))


OFTEN_THERE: Final = (LOOK, WAIT, SUBMITS[SetAttribute], RECORDS[Kind.INTENT], RECORDS[Kind.SETTLED], Whereabouts.AWAY)
"""What is there so often in a night that it need not be met the first time."""


def _kind(state: str) -> str:
    """What a night must be like so that there is that state: replies are lost, VMs are given up, or are wherever they
    can be."""
    if state in PERSISTENT or state == Whereabouts.CHANGING:
        return "whereabouts"
    return state if state in (ADOPT, RECORDS[Kind.GIVEN_UP]) else ""


def is_late(pair: Pair) -> bool:
    """Whether it befalls a process just after a request: one that is aimed would come between check and request."""
    return pair[0] == HANGS and pair[1] in (*SUBMITS.values(), LEASE)


def pairs_of(aims: str) -> tuple[Pair, ...]:
    """The pairs that are written FAULT/STATE,FAULT/STATE."""
    return tuple((fault, state) for fault, _, state in (each.partition("/") for each in aims.split(",")))


def aimed_night(seed: int, pairs: Sequence[Pair]) -> Nightly:
    """The night of a seed in which these faults strike in these states: of the prepared site, or of a drawn world."""
    rng = random.Random(f"{seed}:aimed")
    states = [state for _, state in pairs]
    aims = [*_first(pairs, rng), *(event for fault, state in pairs for event in aimed(fault, state, rng))]
    if seed % DRAWN or any(_kind(state) for state in states):
        leased = LEASE in states or any(fault in MACHINES for fault, _ in pairs)
        crowded = any(_kind(state) == "whereabouts" for state in states)
        return Nightly(seed, aims, site=prepared_site(seed, leased=leased, crowded=crowded))
    return Nightly(seed, [*aims, *Nightly(seed).played.events])


def aimed(fault: str, state: str, rng: random.Random) -> Iterator[Event]:
    """The fault, in that state: at the first time, or at one of the next; and what must happen just before it."""
    point = rng.choice([0, 0, 1, 2, 4]) if state in OFTEN_THERE else 0
    at_s = rng.choice([1.0, 60.0, 600.0])
    if fault in ("H2", "H3") and state == Whereabouts.UNTOUCHED:
        yield Event("", (Rule(Effect.HAPPEN, happening="vm.suspended"),), state=state)
    if (fault, state) == ("V11", Whereabouts.CHANGING):  # nobody reverts a VM that has a task: it may only seem to
        yield Event("T1", rules_of("T1", {"method": "SuspendVM_Task", "times": 5}))
    before = _just_before(fault, state)
    if before is not None:
        state, happening = before
        yield Event("", (Rule(Effect.HAPPEN, happening=happening),), state=state, point=point)
    yield aimed_event(fault, state=state, point=point, at_s=at_s)


def _just_before(fault: str, state: str) -> tuple[str, str] | None:
    """For what strikes a request: the stage in which somebody brings its VM to that whereabouts, between the last look
    at it and the request, and what they do; None = it is there by itself."""
    if fault not in (*OF_TASKS, *REFUSALS):
        return None
    sent: type[Step] = SuspendVm if fault in SUSPENDS else PowerOnVm if fault in STARTS else ResumeVm
    match state:
        case Whereabouts.LOST:
            return SUBMITS[SuspendVm if fault in SUSPENDS else ResumeVm], "vm.stopped"
        case Whereabouts.UNKNOWN:
            return SUBMITS[sent], "vm.inaccessible"
        case Whereabouts.CHANGING:
            # of a VM that has a task no other one is made; what DRS does with it is a task of its cluster
            sent = sent if fault in REFUSALS and fault != "A2" else SetVmDrs
            return SUBMITS[sent], "vm.suspended" if fault in SUSPENDS else "vm.started"
        case _:
            return None


def _first(pairs: Sequence[Pair], rng: random.Random) -> list[Event]:
    """What must happen first so that there are such states."""
    state = pairs[0][1]
    match _kind(state):
        case "":
            return []
        case "whereabouts":
            return everywhere(rng, asked_for=any(fault in (*OF_TASKS, *REFUSALS) for fault, _ in pairs))
        case _ if state == ADOPT:
            return [Event("T2", rules_of("T2", {"times": 12}))]
        case _:
            return [Event(GIVEN_UP, target=name, at_s=1.0) for name in ("ml-01", "desktop-001", "desktop-002", "ml-02")]
