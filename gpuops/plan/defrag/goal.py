"""Goal: what is to be freed: whole GPUs, or slots of one profile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """`profile` None = GPUs that nothing runs on."""

    profile: str | None = None
