"""Pairs of a fault and a state that no night can reach, as data; `coverage` names any that is reached."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.plan.core.steps import ReconfigureVm, RunInGuest, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.rule import Effect, catalogue, rules_of
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.nights.faults.schedule import ALL, DISKS, HANGS, MISSING, TASKS
from tests.nights.measuring.reach import REFUSALS
from tests.nights.measuring.stages import ADOPT, LEASE, LOGIN, LOOK, RECORDS, SUBMITS, WAIT
from tests.nights.world.direct import METHODS

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
