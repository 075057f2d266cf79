"""The section of a policy that names the teams who share its nights: whose a VM is, weights, and what each may have."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.errors import UsageError
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.nights.fair_share import WEEK, FairShare, Team
from gpuops.model.vcenter.owner import OwnerKey

_LONGEST_DAYS = 365
_LARGEST = 1_000_000

_Amount = Annotated[float, Meta(ge=0, le=_LARGEST)]


class AtMostSection(Section):
    """What a team may have at the most, whatever is free."""

    gpus: _Amount | None = None
    gpu_hours_per_week: _Amount | None = None

    def __post_init__(self) -> None:
        if self.gpus is None and self.gpu_hours_per_week is None:
            raise Mistaken("an empty `at_most` limits nothing", "say `gpus`, `gpu_hours_per_week` or both")


class TeamSection(Section):
    """One team."""

    weight: Annotated[float, Meta(gt=0, le=_LARGEST)] = 1.0
    at_most: AtMostSection | None = None

    def team(self, name: str) -> Team:
        most = self.at_most
        limits = (most.gpus, most.gpu_hours_per_week) if most is not None else ()
        return Team(name, self.weight, *limits)


def _owner(text: str) -> OwnerKey:
    try:
        return OwnerKey.parse("by", text)
    except UsageError as error:
        raise Mistaken(f"{text!r} says no owner of a VM", error.hint) from None


class FairShareSection(Section):
    """Whose an ML VM is, and how the teams share."""

    removed_keys: ClassVar = {"across_sites": "remove it: GPU-hours and limits are those of one vCenter"}

    by: Annotated[OwnerKey, Reads(_owner, Text)]
    half_life_days: Annotated[float, Meta(ge=0.1, le=_LONGEST_DAYS)] = WEEK / timedelta(days=1)
    teams: Annotated[dict[Text, TeamSection], Meta(max_length=1000)] = msgspec.field(default_factory=dict)

    def rule(self) -> FairShare:
        teams = tuple(section.team(name) for name, section in self.teams.items())
        return FairShare(self.by, timedelta(days=self.half_life_days), teams)
