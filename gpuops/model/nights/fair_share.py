"""How teams share the GPUs of a policy's nights: their weights and limits.

A team with twice the weight gets twice the GPU-hours where both have work (`weight` of Kueue's fair sharing, shares of
a Slurm account). Past GPU-hours count half after one half-life (Slurm, `PriorityDecayHalfLife`, 7 days by default;
Kueue, `usageHalfLifeTime`). Limits count the GPU-hours of the last 7 days without decay, so that an admin can check the
figure by adding up; Slurm lets its `GrpTRESMins` decay instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.model.file_keys import NOT_IN_FILE, Key, Mistaken, Reads, Text
from gpuops.model.vcenter.owner import NOBODY, OwnerKey

NO_OWNER: Final = "(no owner)"
"""The team of VMs without an owner, and of removed VMs whose owner was never recorded."""
WEEK: Final = timedelta(days=7)
"""The limits of a team count the GPU-hours of so long a time until now."""

_Amount = Annotated[float, Meta(ge=0, le=1_000_000)]


@dataclass(frozen=True, slots=True)
class TeamLimits:
    """The most that a team may have, however much is free; None = any amount."""

    gpus: _Amount | None = None
    """The GPUs that it may have at one moment; a vGPU of which four fit on a GPU is a quarter."""
    gpu_hours_per_week: _Amount | None = None
    """The GPU-hours that it may have in any 7 days."""


def _some_limit(limits: TeamLimits | None) -> TeamLimits:
    if limits == TeamLimits():
        raise Mistaken("an empty `at_most` limits nothing", "set `gpus`, `gpu_hours_per_week` or both")
    return limits or TeamLimits()


@dataclass(frozen=True, slots=True)
class Team:
    """One team: an owner that VMs have."""

    name: Annotated[str, NOT_IN_FILE] = ""
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    at_most: Annotated[TeamLimits, Reads(_some_limit, TeamLimits | None, default=None)] = TeamLimits()


def _owner(text: str) -> OwnerKey:
    try:
        return OwnerKey.parse("by", text)
    except UsageError as error:
        raise Mistaken(f"{text!r} does not name a source of VM owners", error.hint) from None


def _named_teams(teams: dict[str, Team]) -> tuple[Team, ...]:
    return tuple(replace(team, name=name) for name, team in teams.items())


_Days = Reads(lambda days: timedelta(days=days), Annotated[float, Meta(ge=0.1, le=365)], default=7.0)


@dataclass(frozen=True, slots=True)
class FairShare:
    """How an ML VM's owner is found, and how the teams share. A team that is not listed has the weight 1, no limits."""

    removed_keys: ClassVar = {"across_sites": "remove it: GPU-hours and limits are those of one vCenter"}

    by: Annotated[OwnerKey, Reads(_owner, Text)]
    half_life: Annotated[timedelta, Key("half_life_days"), _Days] = WEEK
    teams: Annotated[
        tuple[Team, ...], Reads(_named_teams, Annotated[dict[Text, Team], Meta(max_length=1000)], default={})
    ] = ()

    def team(self, name: str) -> Team:
        return next((team for team in self.teams if team.name == name), Team(name))


def team_of(owner: str) -> str:
    """Return the team of an owner: VMs without an owner are a team, too."""
    return NO_OWNER if owner == NOBODY else owner
