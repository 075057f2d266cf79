"""Shrink: the fewest events of a schedule that still break an invariant."""

from __future__ import annotations

from collections.abc import Sequence

from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.nights.world.worlds import Site


def broken(seed: int, events: Sequence[Event], site: Site | None = None) -> frozenset[str]:
    """The invariants (`I1`) that a night under these events breaks; a crash of the engine counts as one. `site`: None =
    that of the seed."""
    try:
        return frozenset(violation.partition(":")[0] for violation in violations(Nightly(seed, events, site).play()))
    except Exception as error:
        return frozenset({type(error).__name__})


def shrunk(seed: int, events: Sequence[Event], site: Site | None = None) -> tuple[Event, ...]:
    """As few of the events as still break one of the invariants that all of them broke: halves first, then singles."""
    broken_by_all = broken(seed, events, site)
    events_left, size = list(events), max(1, len(events) // 2)
    while size:
        start = 0
        while start < len(events_left):
            fewer = events_left[:start] + events_left[start + size :]
            if broken_by_all & broken(seed, fewer, site):
                events_left = fewer
            else:
                start += size
        size //= 2
    return tuple(events_left)
