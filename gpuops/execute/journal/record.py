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
"""The checksum before the first record of a vCenter."""


class Kind(StrEnum):
    """What a record is about. A new word is a new schema: an older gpuops must not skip a record that it cannot
    read."""

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
    """A night that is not to be taken, or that is to be taken after all."""
    GIVEN_UP = "given_up"
    """A host or VM that an admin gave up, or that is back after all."""
    ENDED = "ended"
    CHECKPOINT = "checkpoint"
    """The state after all records up to here: reading may begin with it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event, in its place. `body` is plain JSON."""

    seq: int
    """Its position among the records of its vCenter, from 1 on, without a gap."""
    run: str
    """Empty for a record that belongs to no run."""
    kind: Kind
    at: datetime
    body: Mapping[str, Any]


def text_of(body: Mapping[str, Any]) -> str:
    """Return the body as it is stored: the checksum is computed from this exact text."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def checksum(previous: str, vcenter: str, seq: int, run: str, kind: str, at: str, body: str) -> str:
    """Return the SHA-256, in hexadecimal, of a stored record together with the checksum before it.

    The input is a JSON list, not the joined texts: two different records never have the same input.
    """
    return hashlib.sha256(json.dumps([previous, vcenter, seq, run, kind, at, body]).encode("ascii")).hexdigest()
