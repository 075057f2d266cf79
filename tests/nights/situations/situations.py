"""Situations: nights in small worlds in which one thing is as a night does not expect it, again and again.

The schedule of a seed mixes many faults, and one of them seldom meets the few steps that it matters to. Here each night
has one situation and nothing else, aimed at the steps of the engine, so that a few dozen nights show what it makes of
that. Each draws from dice of its own. `test_situations.py` plays them; they judge the drawn mutants too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.nights.situations.desktops import (
    LoggedOff,
    Overtaken,
    Queued,
    Redevised,
    Reidentified,
    ShutDown,
    TakenOver,
    Unmarked,
    Untold,
    Woken,
)
from tests.nights.situations.foretold import Looked, Stated
from tests.nights.situations.nights_in_a_row import Forgotten, Hooked, LeftOver, NextNight, Rebuilt, Teams
from tests.nights.situations.requests import (
    Belated,
    Calm,
    Failing,
    Late,
    LockBusy,
    LockGone,
    MarkersStay,
    Paused,
    ReadAnew,
    Refused,
    Reverted,
    SetBack,
    Silent,
    SlowDisk,
    SlowDiskAtWork,
    Unread,
)
from tests.nights.situations.situated import Situated

SITUATIONS: Final[Mapping[str, type[Situated]]] = {
    situation.__name__: situation
    for situation in (
        Woken, LoggedOff, Failing, Refused, Unmarked, LeftOver, Reidentified, Redevised, ShutDown, Overtaken, Silent,
        Unread, Forgotten, ReadAnew, Late, SlowDisk, SlowDiskAtWork, TakenOver, Hooked, Calm, Paused, Reverted, SetBack,
        LockBusy, LockGone, NextNight, Looked, Stated, MarkersStay, Belated, Queued, Untold,
        Teams, Rebuilt,
    )
}  # fmt: skip
