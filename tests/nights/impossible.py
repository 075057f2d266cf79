"""Pairs of a fault and a state that no night can reach, as data; `coverage` names any that is reached."""

from __future__ import annotations

from typing import Final

from gpuops.plan.rotation.ours import Whereabouts
from tests.nights.schedule import DISKS, HOSTS, MISSING, TASKS, VMS
from tests.nights.stages import Stage

REPLIES: Final = ("T2", "T3", "T4", "T5", "T6", "T7", "T8")
"""What befalls a reply on its way."""
CALLS: Final = ("T1", *REPLIES, "T9", "T10", "T11", "N1", "N5")
REFUSALS: Final = ("V2", "A2", "A8")
"""What a request itself is answered with."""
OF_TASKS: Final = (*(each for each in TASKS if each not in REFUSALS), "G3")
SUSPENDS: Final = ("V1", "V2", "V3", "G4")
WAITS: Final = ("N3", "N4")
APPENDS: Final = (Stage.INTEND, Stage.SETTLE, Stage.JOURNAL)

IMPOSSIBLE: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...]] = (
    (
        (*CALLS, *WAITS, "N6", *OF_TASKS, *REFUSALS, *MISSING),
        APPENDS,
        "whoever writes to the journal asks nothing of vCenter meanwhile",
    ),
    (
        (*OF_TASKS, *REFUSALS),
        (Stage.LOGIN, Stage.LOOK, Stage.WAIT, Stage.ADOPT),
        "vCenter refuses a request, and gives a task its trouble, as it is submitted",
    ),
    (WAITS, (Stage.LOGIN, Stage.LOOK, Stage.SUBMIT, Stage.ADOPT), "it is the answer to a wait for updates"),
    (("N6",), (Stage.SUBMIT,), "a submit whose session has ended does not log in anew: the look after it does"),
    (MISSING, (Stage.LOGIN, Stage.SUBMIT, Stage.WAIT, Stage.ADOPT), "it is a property that a look does not get"),
    (DISKS, (Stage.LOGIN, Stage.LOOK, Stage.SUBMIT, Stage.WAIT, Stage.ADOPT), "the journal alone is on the disk"),
    (REPLIES, (Stage.LOGIN,), "a login whose reply is lost is to a night's client one that was not answered"),
    (("N1", "N5"), (Stage.LOGIN,), "who is not logged in has no session that could end"),
    (("K5",), (Stage.LOGIN,), "a run that is not logged in does not hold its lock"),
    # whereabouts
    (
        (*OF_TASKS, *REFUSALS),
        (Whereabouts.CHANGING,),
        "nothing is sent to a VM while a task changes it",
    ),
    (SUSPENDS, (Whereabouts.AWAY,), "a desktop that is away is suspended already"),
    (
        (*VMS, *MISSING, *HOSTS, "G8", "G10", "H1", "H2", "H3", "V11"),
        (Whereabouts.GONE,),
        "a VM that is gone is not there",
    ),
    (("V7", "H1"), (Whereabouts.LOST,), "it is powered off already"),
    (("H1",), (Whereabouts.AWAY,), "nobody sits down at a desktop that is suspended"),
    (
        ("H2", "H3"),
        (Whereabouts.CHANGING, Whereabouts.BACK, Whereabouts.LOST),
        "it wakes up a desktop that is suspended, and no task is at it",
    ),
)
"""(faults, states, reason)."""
