"""The section of a policy that says what is spare capacity: what stays free for desktops, at any hour."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.nights.rotation import GivesWayBy, KeptSlots, SpareRule

_SHARE = re.compile(r"(100|[1-9]?[0-9])%")
_CALM_S = 300


def _number_or_share(value: Any) -> int | str:
    """A number of vGPUs, or a share of them as `10%`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return value
    raise Mistaken(f"{value!r} is neither a number of vGPUs nor a share of them", 'such as 4, or "10%"')


_Kept = Annotated[
    int | str, Reads(_number_or_share, Annotated[Any, Meta(extra_json_schema={"type": ["integer", "string"]})])
]
_AllKept = Annotated[dict[Text, _Kept], Meta(min_length=1)]


def _something(kept: dict[str, int | str]) -> dict[str, int | str]:
    if all(number in (0, "0%") for number in kept.values()):
        raise Mistaken("nothing is kept free for desktops", "say how many: {a40-8q: 4}")
    return kept


class SpareSection(Section):
    """What is kept free for desktops, and how hastily the rest is used."""

    keep_free: Annotated[dict[str, int | str], Reads(_something, _AllKept)]
    calm_s: Annotated[int, Meta(ge=0, le=24 * 3600)] = _CALM_S
    take_idle: bool = False
    give_way: GivesWayBy = GivesWayBy.STOP

    def rule(self) -> SpareRule:
        kept = tuple(_slots(*each) for each in self.keep_free.items())
        return SpareRule(kept, self.calm_s, self.take_idle, self.give_way)


def _slots(profile: str, kept: int | str) -> KeptSlots:
    if isinstance(kept, str):
        return KeptSlots(profile, percent=int(kept.removesuffix("%")))
    return KeptSlots(profile, kept)
