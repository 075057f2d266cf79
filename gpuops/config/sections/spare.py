"""The section of a policy that says what is spare capacity: what stays free for desktops, at any hour."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from gpuops.config.sections.section import Section, Text, mistake
from gpuops.model.nights.rotation import GivesWayBy, KeptSlots, SpareRule

_SHARE = re.compile(r"(100|[1-9]?[0-9])%")
_CALM_S = 300


def _number_or_share(value: Any) -> int | str:
    """A number of vGPUs, or a share of them as `10%`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return value
    raise mistake(f"{value!r} is neither a number of vGPUs nor a share of them", 'such as 4, or "10%"')


_Kept = Annotated[int | str, BeforeValidator(_number_or_share)]


class SpareSection(Section):
    """What is kept free for desktops, and how hastily the rest is used."""

    keep_free: dict[Text, _Kept] = Field(min_length=1)
    calm_s: int = Field(default=_CALM_S, ge=0, le=24 * 3600)
    take_idle: bool = False
    give_way: Annotated[GivesWayBy, Field(strict=False)] = GivesWayBy.STOP

    @field_validator("keep_free")
    @classmethod
    def _something(cls, kept: dict[str, int | str]) -> dict[str, int | str]:
        if all(value in (0, "0%") for value in kept.values()):
            raise mistake("nothing is kept free for desktops", "say how many: {a40-8q: 4}")
        return kept

    def rule(self) -> SpareRule:
        kept = tuple(_slots(*each) for each in self.keep_free.items())
        return SpareRule(kept, self.calm_s, self.take_idle, self.give_way)


def _slots(profile: str, kept: int | str) -> KeptSlots:
    if isinstance(kept, str):
        return KeptSlots(profile, percent=int(kept.removesuffix("%")))
    return KeptSlots(profile, kept)
