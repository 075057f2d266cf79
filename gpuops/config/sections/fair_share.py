"""The section of a policy that names the teams who share its nights: whose a VM is, weights, and what each may have."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from gpuops.config.sections.section import Section, Text, mistake
from gpuops.errors import UsageError
from gpuops.model.nights.fair_share import WEEK, FairShare, Team
from gpuops.model.vcenter.owner import OwnerKey

_LONGEST_DAYS = 365
_LARGEST = 1_000_000

_Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]


class AtMostSection(Section):
    """What a team may have at the most, whatever is free."""

    gpus: _Amount | None = None
    gpu_hours_per_week: _Amount | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AtMostSection:
        if self.gpus is None and self.gpu_hours_per_week is None:
            raise mistake("an empty `at_most` limits nothing", "say `gpus`, `gpu_hours_per_week` or both")
        return self


class TeamSection(Section):
    """One team."""

    weight: Annotated[float, Field(gt=0, le=_LARGEST, allow_inf_nan=False)] = 1.0
    at_most: AtMostSection | None = None

    def team(self, name: str) -> Team:
        most = self.at_most or AtMostSection.model_construct()
        return Team(name, self.weight, most.gpus, most.gpu_hours_per_week)


class FairShareSection(Section):
    """Whose an ML VM is, and how the teams share."""

    removed_keys: ClassVar = {"across_sites": "remove it: GPU-hours and limits are those of one vCenter"}

    by: Text
    half_life_days: Annotated[float, Field(ge=0.1, le=_LONGEST_DAYS, allow_inf_nan=False)] = WEEK / timedelta(days=1)
    teams: dict[Text, TeamSection] = Field(default_factory=dict, max_length=1000)

    @field_validator("by")
    @classmethod
    def _an_owner(cls, by: str) -> str:
        try:
            OwnerKey.parse("by", by)
        except UsageError as error:
            raise mistake(f"{by!r} says no owner of a VM", error.hint) from None
        return by

    def rule(self) -> FairShare:
        teams = tuple(section.team(name) for name, section in self.teams.items())
        return FairShare(OwnerKey.parse("by", self.by), timedelta(days=self.half_life_days), teams)
