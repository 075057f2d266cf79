"""What a watch knows from earlier looks when it begins a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuops.execute.past.followed_nights import FollowedNights
from gpuops.plan.rotation.nights.spare import Key


@dataclass(frozen=True, slots=True)
class SpareNow:
    """What a watch knows from its earlier looks, for one of its runs."""

    lowest: Mapping[Key, int] = field(default_factory=dict)
    """The fewest free slots during the calm time, by profile and cluster or host."""
    not_yet: Mapping[str, str] = field(default_factory=dict)
    """VM ref -> why a waiting ML VM is not started now."""
    finished: frozenset[str] = frozenset()
    """Instance uuids (or refs) of ML VMs that ended by themselves."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Pool -> how many of its desktops must run, by a forecast."""
    suspends: frozenset[str] = frozenset()
    """ML VMs (refs) that a restore of this watch suspends with their memory instead of stopping them."""
    past: FollowedNights | None = None
    """The nights read from its journal so far; None = read the journal from its first record when needed."""


NOTHING_KNOWN: Final = SpareNow()
"""For a run that is resumed without its watch: it starts nothing."""
