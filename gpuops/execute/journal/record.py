"""One record of the journal, and the checksum that chains it to the record before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

GENESIS: Final = "0" * 64
"""What stands in the place of a checksum before the first record of a vCenter."""


class Kind(StrEnum):
    """What a record tells. A new word is a new schema: an older gpuops must not skip over what it cannot read."""

    BEGUN = "begun"
    ORIGINAL = "original"
    """A VM as it was, before a night may touch it."""
    INTENT = "intent"
    """An effect about to be sent."""
    SUBMITTED = "submitted"
    """vCenter took it and named a task."""
    SETTLED = "settled"
    RETURNED = "returned"
    """A VM was seen as it was before the night."""
    SKIP = "skip"
    """A night that is not to be taken, or after all is."""
    GIVEN_UP = "given_up"
    """A host or VM that a person gave up, or that is back after all."""
    ENDED = "ended"
    CHECKPOINT = "checkpoint"
    """All that the records up to here come to: whoever reads may begin with it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened, in its place. `body` is plain JSON."""

    seq: int
    """Its place among the records of its vCenter, from 1 on, without a gap."""
    run: str
    """Empty for a record of no run."""
    kind: Kind
    at: datetime
    body: Mapping[str, Any]


def text_of(body: Mapping[str, Any]) -> str:
    """The body as it is kept: the checksum is of this very text."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def checksum(previous: str, vcenter: str, seq: int, run: str, kind: str, at: str, body: str) -> str:
    """SHA-256 of a record as it is kept and of the checksum before it, in hexadecimal.

    A JSON list, not the texts one after another: no two different records have the same one.
    """
    return hashlib.sha256(json.dumps([previous, vcenter, seq, run, kind, at, body]).encode("ascii")).hexdigest()
