"""Pools: the desktops that may give way, and the two keys it takes."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gpuops.config.sections.section import Section, Text, accepted_before, mistake
from gpuops.config.sections.selection import MarkSection, SelectSection
from gpuops.model.rotation import DirectPath, IdleRule, Pool

NO_OWNER = "none"


class IdleSection(Section):
    """When a desktop of the pool counts as idle."""

    cpu_below_mhz: int = Field(ge=1)


class PoolSection(Section):
    """One pool."""

    name: Text
    parked: bool
    select: SelectSection
    idle: IdleSection
    floor: int = Field(default=0, ge=0)
    owner: MarkSection | None = None
    priority: int = Field(default=0, ge=-1000, le=1000)
    directpath: DirectPath = Field(default=DirectPath.LEAVE, strict=False)

    @field_validator("owner", mode="before")
    @classmethod
    def _none_is_said(cls, value: Any) -> Any:
        if value is None:
            raise mistake("is empty", _SAY_OWNER)
        if isinstance(value, str) and value != NO_OWNER:
            raise mistake(f"{value!r} is no mark", _SAY_OWNER)
        return None if value == NO_OWNER else value

    @model_validator(mode="after")
    def _second_key(self, info: ValidationInfo) -> PoolSection:
        if "owner" not in self.model_fields_set and not accepted_before(info):
            raise mistake(f"pool {self.name!r} has no `owner`: the mark that its desktops' owners set", _SAY_OWNER)
        return self

    def pool(self) -> Pool:
        return Pool(
            name=self.name,
            select=self.select.selector(),
            idle=IdleRule(self.idle.cpu_below_mhz),
            parked=self.parked,
            floor=self.floor,
            owner=self.owner.mark() if self.owner else None,
            priority=self.priority,
            directpath=self.directpath,
        )


_SAY_OWNER = "owner: {attribute: gpuops.owner}, or `owner: none` if this file alone may select"
