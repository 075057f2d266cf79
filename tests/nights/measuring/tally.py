"""Tally: many nights at once, and what they come to."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from statistics import median
from typing import Final, Self, TypeVar

from tests.nights.faults.schedule import ALL, OF_IDENTITY, SELDOM
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import play

CHUNK: Final = 10
"""Nights handed to a process at once: few, so that the last one at work does not keep the others waiting."""


@dataclass
class Summed:
    """Figures of some nights; those of more nights are their sums."""

    def add(self, addend: Self) -> None:
        for summed_field in fields(self):
            setattr(self, summed_field.name, getattr(self, summed_field.name) + getattr(addend, summed_field.name))


@dataclass
class Timed(Summed):
    """Figures of nights that were played in some processes, and the time that took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


SomeTally = TypeVar("SomeTally", bound=Timed)


@dataclass
class Tally(Timed):
    """What many nights come to."""

    nights: int = 0
    effects: list[int] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    """How often each fault of the catalogue struck."""
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    """In how many of them each fault took effect in each state; see `coverage`."""
    violations: list[str] = field(default_factory=list)
    """Each with the seed of its night."""
    broken: list[int] = field(default_factory=list)
    """The seeds of the nights that broke an invariant."""

    @property
    def rarest(self) -> tuple[str, int]:
        """The fault that struck least often."""
        return min(((fault, self.struck[fault]) for fault in ALL), key=lambda fault_and_count: fault_and_count[1])

    def __str__(self) -> str:
        per_minute, core_minutes = 60 * self.nights / max(self.wall_s, 1e-9), self.cpu_s / 60
        effects = sum(self.effects)
        per_night = effects / max(self.nights, 1)
        counted = f"{self.nights} nights, {effects} effects (median {median(self.effects or [0]):.0f} a night)"
        speed = f"{per_minute:.0f} nights and {per_minute * per_night:.0f} effects a minute"
        core = f"{self.nights / max(core_minutes, 1e-9):.0f} nights per minute of one core"
        lines = [
            f"{counted}, {len(self.violations)} violations",
            f"{speed} ({core})",
            "faults struck: " + " ".join(f"{fault} {self.struck[fault]}" for fault in (*ALL, *SELDOM, *OF_IDENTITY)),
        ]
        return "\n".join([*lines, *self.violations[:50]])


def tally(seeds: Sequence[int], *, jobs: int) -> Tally:
    """These nights, in so many processes."""
    return summed(Tally, _add, seeds, jobs)


def summed(kind: type[SomeTally], add: Callable[[SomeTally, int], None], seeds: Sequence[int], jobs: int) -> SomeTally:
    """Return what the nights of these seeds come to, each added to a tally by `add`, in so many processes."""
    total, began = kind(), time.monotonic()
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        for part in (pool.map if pool else map)(partial(_of_some, kind, add), chunks):
            total.add(part)
    total.wall_s = time.monotonic() - began
    return total


def _of_some(kind: type[SomeTally], add: Callable[[SomeTally, int], None], seeds: Sequence[int]) -> SomeTally:
    part, began = kind(), time.process_time()
    with rarely_swept():
        for seed in seeds:
            add(part, seed)
            gc.collect()  # now, while the processor still has the night at hand
    part.cpu_s = time.process_time() - began
    return part


@contextmanager
def rarely_swept() -> Iterator[None]:
    """A world is one knot of references that lives as long as its night: looking for garbage meanwhile finds none."""
    frozen = gc.get_freeze_count()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()


def _add(tally_of_nights: Tally, seed: int) -> None:
    tally_of_nights.nights += 1
    try:
        night = play(seed)
        broken_invariants = violations(night)
    except Exception as crash:  # of the engine: as bad as an invariant that does not hold, and other nights go on
        tally_of_nights.broken.append(seed)
        tally_of_nights.violations.append(f"{type(crash).__name__}: {crash} {_replay(seed)}")
        return
    tally_of_nights.effects.append(sum(1 for change in night.world.ledger if change.operation_id))
    tally_of_nights.struck.update(night.struck)
    tally_of_nights.reached.update(night.reached)
    tally_of_nights.broken += [seed] if broken_invariants else []
    tally_of_nights.violations += [f"{violation} {_replay(seed)}" for violation in broken_invariants]


def _replay(seed: int) -> str:
    return f"(replay: python -m tests.nights replay {seed})"
