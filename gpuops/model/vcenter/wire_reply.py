"""What vCenter told of one object, property by property: words of the API apart from any other text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class FreeText:
    """A text that is no word of the API: a name, a path, an address, anything."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a managed object."""

    type: str
    ref: str


Told: TypeAlias = (
    "FreeText | Reference | str | bool | int | float | datetime | Sequence[Told] | Mapping[str, Told] | None"
)
"""A value: `str` is a word of the API (the value of an enumeration), the keys of mappings are names of its fields."""


@dataclass(frozen=True, slots=True)
class WireReply:
    """One object of a reply."""

    object: Reference
    properties: Mapping[str, Told]
    """By property path; what is not told is not there."""
