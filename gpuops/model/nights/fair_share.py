"""What a policy says of teams that share the GPUs of its nights: their weights, and what each may have at the most.

The words are those of batch systems. A team with twice the weight is to have twice the GPU-hours where both have work
(`weight` of Kueue's fair sharing, shares of a Slurm account). GPU-hours count less the longer ago they were: half after
one half-life (Slurm, `PriorityDecayHalfLife`, 7 days unless said; Kueue, `usageHalfLifeTime`). What a team may have at
the most is counted without decay, over the last 7 days, so that its figure can be checked by adding up; Slurm lets its
`GrpTRESMins` decay instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpuops.model.vcenter.owner import NOBODY, OwnerKey

NO_OWNER: Final = "(no owner)"
"""The team of VMs that say no owner; and of VMs that are gone, and of which nobody noted it."""
WEEK: Final = timedelta(days=7)
"""GPU-hours that a team may have are those of so long a time until now."""


@dataclass(frozen=True, slots=True)
class Team:
    """One team, by the owner that its VMs say."""

    name: str
    weight: float = 1.0
    gpus: float | None = None
    """So many GPUs at once, at the most: a vGPU of which four fit on a GPU is a quarter; None = any number."""
    gpu_hours: float | None = None
    """So many GPU-hours in any 7 days, at the most; None = any number."""


@dataclass(frozen=True, slots=True)
class FairShare:
    """How teams share what a queue gets. A team that is not listed has the weight 1, and may have any number."""

    by: OwnerKey
    half_life: timedelta = WEEK
    teams: tuple[Team, ...] = ()

    def team(self, name: str) -> Team:
        return next((team for team in self.teams if team.name == name), Team(name))


def team_of(owner: str) -> str:
    """The team that an owner is: VMs that say none are a team, too."""
    return NO_OWNER if owner == NOBODY else owner
