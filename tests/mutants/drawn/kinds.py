"""Kinds: the nights that judge a mutant. Each is a seed, or a seed's world under fewer events; each tells what broke.

This module is imported by the judging process alone, for it imports the engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from tests.nights.at_once.runners import pair_violations
from tests.nights.faults.event import Event
from tests.nights.interrupted.test_kills import CutShort
from tests.nights.judging.checkers import violations
from tests.nights.playing.filed import damaged_violations, filed_violations
from tests.nights.playing.night import Nightly, play
from tests.nights.playing.soap import SoapNightly
from tests.nights.situations.situations import SITUATIONS

FIRST: Final = 7_000_000
"""Seeds that no other suite plays, fixed before any mutant was drawn."""
OTHERS: Final = (
    "night", "return", "pair", "quiet", "night", "large", "return", "filed", "night", "damaged", "pair", "return",
)  # fmt: skip
OF_AREA: Final[Mapping[str, tuple[str, ...]]] = {
    "guard": ("Woken", "LoggedOff", "Failing", "Refused", "Redevised", "Calm"),
    "identity": ("Unmarked", "LeftOver", "Reidentified", "Unread", "TakenOver", "Stated", "ShutDown"),
    "lease": ("Calm", "Paused", "Reverted", "SetBack", "LockBusy", "LockGone", "LeftOver", "pair"),
    "adoption": (
        "Overtaken",
        "Silent",
        "SlowDisk",
        "SlowDiskAtWork",
        "Looked",
        "ReadAnew",
        "Hooked",
        "Silent over SOAP",
        "Overtaken over SOAP",
        "Forgotten over SOAP",
    ),
    "journal": ("filed", "damaged", "Looked", "LeftOver", "Calm", "return"),
    "return": ("Calm", "Silent", "Unread", "TakenOver", "Hooked", "Reverted", "ShutDown", "return"),
}
"""Kinds about what the modules of an area do: by its docstring, and before any mutant was judged by them."""
OWN: Final = 4
"""So many rounds of these, and then one of all kinds."""
EVERY: Final = 3
"""A night over SOAP takes as long as ten without: one in so many rounds of all."""
POINTS: Final = 60
"""Most boundaries of a small world's evening, at one of which it is cut off."""

Events = Sequence[Event] | None


@dataclass(frozen=True, slots=True)
class Night:
    """One night; `events` None = those of its seed."""

    kind: str
    seed: int
    events: tuple[Event, ...] | None = None

    def said(self) -> list[str]:
        """Return the broken invariants; a crash of the engine counts as one."""
        try:
            return _KINDS[self.kind](self.seed, self.events)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]

    def to_json(self) -> dict[str, Any]:
        events = None if self.events is None else [event.to_json() for event in self.events]
        return {"kind": self.kind, "seed": self.seed, "events": events}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Night:
        events = values["events"]
        return cls(values["kind"], values["seed"], None if events is None else tuple(map(Event.from_json, events)))


def nights(area: str) -> Iterator[Night]:
    """All of them, in the order in which every mutant of the area is given them."""
    seeds = {kind: count(FIRST + (kind == "large"), 2) for kind in _KINDS}  # even seeds are small worlds
    for turn in count(1):
        soap = ["soap"] if turn % EVERY == 0 else []
        for kind in (*OF_AREA[area] * OWN, *SITUATIONS, *OTHERS, *soap):
            yield Night(kind, next(seeds[kind]))


def shrunk(night: Night) -> Night:
    """The fewest events under which it still breaks something; of a kind without events itself."""
    if night.kind not in ("night", "large", "soap", "filed"):
        return night
    events_left = list(Nightly(night.seed).played.events)
    size = max(1, len(events_left) // 2)
    while size:
        start = 0
        while start < len(events_left):
            fewer = Night(night.kind, night.seed, tuple(events_left[:start] + events_left[start + size :]))
            if fewer.said():
                events_left = list(fewer.events or ())
            else:
                start += size
        size //= 2
    return Night(night.kind, night.seed, tuple(events_left))


def _night(seed: int, events: Events) -> list[str]:
    return violations(play(seed, events))


def _quiet(seed: int, _events: Events) -> list[str]:
    """A night in which nothing goes wrong but the engine."""
    return violations(play(seed, ()))


def _soap(seed: int, events: Events) -> list[str]:
    return violations(SoapNightly(seed, events).play())


def _return(seed: int, _events: Events) -> list[str]:
    """An evening cut off at a point, and a return at once."""
    rng = random.Random(f"{seed}:cut")
    cut = CutShort(seed, 2 * rng.randrange(1, POINTS // 2), lost=rng.random() < 0.5)
    if not cut.site.policy.ml_stop.then_off:  # what the policy leaves running keeps desktops from coming back
        return []
    cut.play()
    return cut.wrong() if cut.played.calls[0][1] == "killed" else []


def _situation(name: str, seed: int, _events: Events) -> list[str]:
    return violations(SITUATIONS[name](seed).play())


def _over_soap(name: str, seed: int, _events: Events) -> list[str]:
    """By our own client, as the tasks of lost replies are found by it alone."""
    kind = type(name, (SoapNightly, SITUATIONS[name]), {})
    return violations(kind(seed).play())


def _pair(seed: int, _events: Events) -> list[str]:
    return pair_violations(seed)


_KINDS: Final[Mapping[str, Callable[[int, Events], list[str]]]] = {
    "night": _night,
    "large": _night,
    "quiet": _quiet,
    "return": _return,
    "pair": _pair,
    "soap": _soap,
    "filed": filed_violations,
    "damaged": damaged_violations,
    **{name: partial(_situation, name) for name in SITUATIONS},
    **{f"{name} over SOAP": partial(_over_soap, name) for name in ("Silent", "Overtaken", "Forgotten")},
}
