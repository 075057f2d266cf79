"""Aiming: which faults strike a night in which states, and what must happen first so that there are such states.

A night leads with one pair that is missing, and takes more along, in the states that the same part of a night has from
then on: trouble in an earlier part would keep it from them. What hardly disturbs a run strikes with others; what stops
it, or takes a VM or a host away, has a moment of its own. Most of these nights are of the prepared site, some of a
world as `play` draws it. `IMPOSSIBLE` holds the pairs that no night can reach; `coverage` names any that is reached.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.rule import Effect, Rule, catalogue, rules_of
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.nights.faults.event import GIVEN_UP, Event
from tests.nights.faults.schedule import ALL, DISKS, HANGS, HOSTS, MACHINES, MISSING, TASKS
from tests.nights.measuring.reach import REFUSALS, is_light
from tests.nights.measuring.stages import ADOPT, LEASE, LOGIN, LOOK, RECORDS, SUBMITS, WAIT
from tests.nights.playing.night import Nightly
from tests.nights.world.direct import METHODS
from tests.nights.world.prepared import PERSISTENT, everywhere, prepared_site

REPLIES: Final = ("T2", "T3", "T4", "T5", "T6", "T7", "T8")
"""What befalls a reply on its way."""
CALLS: Final = ("T1", *REPLIES, "T9", "T10", "T11", "N1", "N5")
OF_TASKS: Final = (*(task for task in TASKS if task not in REFUSALS), "G3")
SUSPENDS: Final = ("V1", "V2", "V3", "G4")
STARTS: Final = ("V8", "G2", "G3", "C6", "A8")
WAITS: Final = ("N3", "N4")
SENDS: Final = (*SUBMITS.values(), LEASE)
APPENDS: Final = tuple(RECORDS.values())
WITHOUT_TASK: Final = (SetAttribute, ShutDownGuest, RunInGuest)

BY_CHANCE: Final = (("A8", Whereabouts.UNTOUCHED.value), ("V7", Whereabouts.LOST.value))
"""Possible, and not aimed at: a few nights met them where vCenter showed a VM for a while as it was before."""

Row = tuple[tuple[str, ...], tuple[str, ...], str]


def _of_other_tasks() -> Iterator[Row]:
    """Trouble of one kind of task, and the steps that make tasks of other kinds."""
    for kind, state in [*SUBMITS.items(), (ReconfigureVm, LEASE)]:
        other_faults = tuple(fault for fault in (*OF_TASKS, *REFUSALS) if not _speaks_of(fault, kind))
        if other_faults:
            yield other_faults, (state,), "it befalls the tasks of other methods"


def _speaks_of(fault: str, kind: Any) -> bool:
    if (fault, kind) == ("A2", SetAttribute):
        return True
    return fnmatchcase(METHODS[kind], "*_Task" if fault == "A2" else rules_of(fault)[0].method)


def _befalling_vms() -> Iterator[str]:
    """What befalls a VM, or a host with its VMs."""
    for fault in ALL:
        rules = rules_of(fault) if fault in catalogue() else ()
        kinds = {OUTSIDE_EVENTS[rule.happening].kind for rule in rules if rule.effect is Effect.HAPPEN}
        if fault.startswith("H") or kinds & {"VirtualMachine", "HostSystem", "ManagedEntity"}:
            yield fault


IMPOSSIBLE: Final[tuple[Row, ...]] = (
    # states that no night has
    (("*",), (SUBMITS[ReconfigureVm],), "a night reconfigures no VM but the lock VM, and that is a lease write"),
    (
        ("*",),
        (RECORDS[Kind.SKIP], RECORDS[Kind.CHECKPOINT]),
        "no night writes it: it is of `rotate skip`, of the end of 2,000 records",
    ),
    # stages
    (
        (*CALLS, *WAITS, "N6", *OF_TASKS, *REFUSALS, *MISSING),
        APPENDS,
        "a run that writes to the journal sends nothing to vCenter meanwhile",
    ),
    (
        (*OF_TASKS, *REFUSALS),
        (LOGIN, LOOK, WAIT, ADOPT),
        "vCenter refuses a request, and gives a task its trouble, as it is submitted",
    ),
    (OF_TASKS, tuple(SUBMITS[kind] for kind in WITHOUT_TASK), "the request has no task"),
    *_of_other_tasks(),
    (WAITS, (LOGIN, LOOK, ADOPT, *SENDS), "it is the answer to a wait for updates"),
    (("N6",), SENDS, "a submit whose session has ended does not log in anew: the look after it does"),
    (MISSING, (LOGIN, WAIT, ADOPT, *SENDS), "it is a property that a look does not get"),
    (DISKS, (LOGIN, LOOK, WAIT, ADOPT, *SENDS), "the journal alone is on the disk"),
    (REPLIES, (LOGIN,), "a login whose reply is lost is to a night's client one that was not answered"),
    (("N1", "N5"), (LOGIN,), "a run that is not logged in has no session that could end"),
    (("K5", HANGS), (LOGIN,), "a run that is not logged in does not hold its lock"),
    # whereabouts
    (
        tuple(fault for fault in (*STARTS, *SUSPENDS) if fault not in REFUSALS),
        (Whereabouts.CHANGING,),
        "a VM that a task changes has no second task",
    ),
    ((*SUSPENDS, *STARTS), (Whereabouts.GONE,), "a VM that is gone is neither suspended nor started"),
    (
        (*SUSPENDS, *(start for start in STARTS if start != "A8")),
        (Whereabouts.UNTOUCHED,),
        "from its intent on, a suspended or started VM counts as taken",
    ),
    (SUSPENDS, (Whereabouts.AWAY,), "a desktop that is away is suspended already"),
    (
        SUSPENDS,
        (Whereabouts.FOREIGN, Whereabouts.GIVEN_UP),
        "a VM is in the journal of that night before it is suspended",
    ),
    ((*_befalling_vms(), *MISSING), (Whereabouts.GONE,), "a VM that is gone is not there"),
    (("H1", "H4"), (Whereabouts.LOST,), "it is powered off already"),
    (("H1", "H4"), (Whereabouts.AWAY,), "no user works at a suspended desktop"),
    (("H1", "H4"), (Whereabouts.GIVEN_UP,), "a desktop that was given up and runs is back"),
    (
        ("H2", "H3"),
        (Whereabouts.CHANGING, Whereabouts.BACK, Whereabouts.LOST),
        "it wakes up a desktop that is suspended, and no task is at it",
    ),
)
"""(faults, states, reason); `*` is every fault."""


Pair = tuple[str, str]
"""A fault, and a stage of the engine or the whereabouts of a VM."""
AIMS: Final = 20
"""Events of a night that are aimed and need a moment of their own."""
LIGHT_AIMS: Final = 30
"""Those that hardly disturb a run."""
IN_ONE_STATE: Final = 3
"""Of those that need a moment of their own."""
IN_ITS_STATE: Final = 6
"""Of those, in the state of the pair that a night leads with."""
HARD: Final = ("T2", "T6", "T7", *HOSTS, "T12", "T13", "N6", "N7", "N8", "G10", "K7")
"""What changes most of the night after it."""
HARD_AIMS: Final = 10
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
MET: Final = 0.5
"""Of the nights that aim at a pair, about so many meet it."""
ADOPTED: Final = tuple(METHODS[kind] for kind in (SuspendVm, RelocateVm, PowerOnVm, SetVmDrs, PowerOffVm))
"""Requests whose replies are lost so that their tasks are adopted; a lease is written, or is not, without that."""
ABANDONED: Final = ("ml-01", "desktop-001", "desktop-002", "ml-02", "desktop-003", "ml-03")
"""VMs that a person gives up so that this is written."""
IN_THE_MORNING: Final = (4, 5, 6)
"""Of the requests about DRS of a prepared night: the evening has the first four."""
FOR_GOOD: Final = ("T13",)
"""After it no run gets any further."""


def aimed_event(fault: str, state: str = "", point: int = 0, at_s: float = 0.0) -> Event:
    bent = _BENT_IN.get((fault, state)) or _BENT.get(fault)
    rules = rules_of(fault, bent) if fault in catalogue() else ()
    return Event(fault, rules, state=state, point=point, at_s=at_s)


LIGHT: Final = tuple(fault for fault in dict.fromkeys(ALL) if is_light(aimed_event(fault)))


def aims(missing: Mapping[Pair, int], count: int, first: int) -> Iterator[tuple[int, tuple[Pair, ...]]]:
    """Of so many nights each seed and what it aims at: the more a pair is missing, and the less often the nights before
    aim at it, the more often."""
    rng, missing_weights = random.Random(f"{first}:pairs"), {pair: float(most) for pair, most in missing.items()}
    for seed in range(first, first + count):
        leading, *other_pairs = sorted(
            missing_weights, key=lambda pair: rng.random() ** (1 / missing_weights[pair]), reverse=True
        )
        chosen = _beside(leading, other_pairs)
        missing_weights.update({pair: max(missing_weights[pair] - MET, MET / 5) for pair in chosen})
        yield seed, chosen


def _beside(leading: Pair, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pair, and as many others as such a night can meet: of what is light many, the rest in states as different as
    there are, for each needs a moment of its own; what no run gets past soon comes last."""
    candidates = [pair for pair in pairs if _meets(leading, pair)]
    light = [pair for pair in candidates if pair[0] in LIGHT][:LIGHT_AIMS]
    chosen, hard = [leading], int(leading[0] in HARD)
    of_state = Counter([leading[1]])
    for most in range(1, IN_ITS_STATE + 1):
        for pair in candidates:
            if pair[0] in LIGHT or pair in chosen or of_state[pair[1]] >= most or len(chosen) > AIMS:
                continue
            if most > IN_ONE_STATE and pair[1] != leading[1]:
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


PARTS: Final[Mapping[str, Sequence[str]]] = {
    "start": (LOGIN, LOOK, LEASE),
    "preparing": (
        *(RECORDS[Kind.BEGUN], RECORDS[Kind.ORIGINAL], Whereabouts.UNTOUCHED),
        *(RECORDS[Kind.INTENT], SUBMITS[SetAttribute], SUBMITS[RelocateVm]),
    ),
    "taking": (
        *(WAIT, RECORDS[Kind.SETTLED], RECORDS[Kind.SUBMITTED], SUBMITS[SuspendVm], SUBMITS[SetVmDrs]),
        *(Whereabouts.CHANGING, Whereabouts.AWAY, SUBMITS[PowerOnVm]),
    ),
    "returning": (
        *(SUBMITS[RunInGuest], SUBMITS[ShutDownGuest], SUBMITS[PowerOffVm], SUBMITS[ResumeVm]),
        *(Whereabouts.BACK, RECORDS[Kind.RETURNED], RECORDS[Kind.ENDED]),
    ),
}
"""The states of each part of a night, in the order in which they are first there: trouble keeps a night from what comes
later."""
ASKED: Final = "asked for"
"""The nights in which what no return touches is asked for by name."""


def kind_of(pair: Pair) -> str:
    """What a night must be like so that it meets the pair: the part of a night that has its state first; or the state
    itself, where replies are lost, VMs are given up, or stay where they are, so that there is one."""
    fault, state = pair
    if state in PERSISTENT and state != Whereabouts.GONE and fault in (*OF_TASKS, *REFUSALS):
        return ASKED
    return next((part for part, states in PARTS.items() if state in states), state)


def _meets(leading: Pair, pair: Pair) -> bool:
    """Whether a night that leads with one pair may meet the other: such a night has its state, and not before."""
    states = PARTS.get(kind_of(leading), ())
    return kind_of(pair) == kind_of(leading) and (not states or states.index(pair[1]) >= states.index(leading[1]))


def pairs_of(aims: str) -> tuple[Pair, ...]:
    """The pairs that are written FAULT/STATE,FAULT/STATE."""
    return tuple((fault, state) for fault, _, state in (text.partition("/") for text in aims.split(",")))


def aimed_night(seed: int, pairs: Sequence[Pair]) -> Nightly:
    """The night of a seed in which these faults strike in these states: of the prepared site, or of a drawn world."""
    rng = random.Random(f"{seed}:aimed")
    states = [state for _, state in pairs]
    aims = [*_first(pairs, rng), *(event for fault, state in pairs for event in aimed_events(fault, state, rng))]
    if seed % DRAWN or any(kind_of(pair) not in PARTS for pair in pairs):
        leased = LEASE in states or any(fault in MACHINES for fault, _ in pairs)
        crowded = any(state in PERSISTENT for state in states)
        return Nightly(seed, aims, site=prepared_site(seed, leased=leased, crowded=crowded))
    return Nightly(seed, [*aims, *Nightly(seed).played.events])


def aimed_events(fault: str, state: str, rng: random.Random) -> Iterator[Event]:
    """The fault, in that state: at the first time, or at one of the next; and what must happen just before it."""
    point = rng.choice([0, 0, 1, 2, 4]) if state in OFTEN_THERE else 0
    at_s = rng.choice([1.0, 60.0, 600.0])
    if fault in ("H2", "H3") and state == Whereabouts.UNTOUCHED:
        yield Event("", (Rule(Effect.HAPPEN, happening="vm.suspended"),), state=state)
    if fault in ("H1", "H4") and state == Whereabouts.UNKNOWN:  # no user works on a suspended desktop
        yield Event("", (Rule(Effect.HAPPEN, happening="vm.inaccessible"),), state=Whereabouts.UNTOUCHED)
    if (fault, state) == ("V11", Whereabouts.CHANGING):  # a VM with a task is not reverted: it may only seem so
        yield Event("T1", rules_of("T1", {"method": "SuspendVM_Task", "times": 5}))
    before = _just_before(fault, state)
    if before is not None:
        state, happening = before
        point = rng.choice(IN_THE_MORNING) if happening == "vm.deleted" else point
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
        case Whereabouts.GONE:
            # in the morning what DRS may do with it is set again, by a task of its cluster
            return SUBMITS[SetVmDrs], "vm.deleted"
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
    match kind_of(pairs[0]):
        case part if part in PARTS:
            return []
        case state if state == ADOPT:
            return [Event("T2", rules_of("T2", {"method": method, "times": 3})) for method in ADOPTED]
        case state if state == RECORDS[Kind.GIVEN_UP]:
            return [Event(GIVEN_UP, target=name, at_s=1.0) for name in ABANDONED]
        case kind:
            return everywhere(rng, asked_for=kind == ASKED)
