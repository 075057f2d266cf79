"""What the earlier looks of a watch tell the run that it begins now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuops.execute.past.followed_nights import FollowedNights
from gpuops.plan.rotation.nights.spare import Key


@dataclass(frozen=True, slots=True)
class SpareNow:
    """What the earlier looks of a watch tell one of its runs."""

    lowest: Mapping[Key, int] = field(default_factory=dict)
    """The fewest slots that were free of late, by profile and cluster or host."""
    not_yet: Mapping[str, str] = field(default_factory=dict)
    """VM ref -> why an ML VM that waits is not started now."""
    finished: frozenset[str] = frozenset()
    """Instance uuids (or refs) of ML VMs that ended by themselves."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Pool -> how many of its desktops are to run by a forecast."""
    suspends: frozenset[str] = frozenset()
    """ML VMs (refs) that give way with their memory in a restore of this watch."""
    past: FollowedNights | None = None
    """What its journal told so far; None = it is read from the first record, where that is asked for."""


NOTHING_KNOWN: Final = SpareNow()
"""Of a run that is resumed without its watch: it starts nothing."""
