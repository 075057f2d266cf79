"""A rule of vSphere or NVIDIA that gpuops plans by, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Confidence(StrEnum):
    """How sure a rule is, from the surest on."""

    RECORDED = "recorded"
    DOCUMENTED = "documented"
    REPORTED = "reported"
    INFERRED = "inferred"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One row of `gpuops/catalog/assumptions.yaml`, which says what each field means."""

    id: str
    statement: str
    source: str
    confidence: Confidence
    deviation: str | None = None
    """None = the simulated vCenter knows no other behaviour."""
    read: str | None = None
    """The state of a vCenter in which reading shows whether the rule holds; None = only a change shows it."""
    evidence: str = ""
    """The sentence about an observation, with the names of its facts in braces."""
    against: str = ""
    """The sentence about one that contradicts the rule; empty = the same."""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """Commands after which it is known whether some rules hold."""

    minutes: int
    settles: tuple[str, ...]
    """Ids of the rules."""
    commands: tuple[str, ...]
    contradicted: str | None = None
    """What of the output contradicts the rules; None = the look among the commands judges them."""
    restarts: str | None = None
    """What is restarted, `the host`; None = nothing."""


class Standing(StrEnum):
    """What is known of a rule in one vCenter."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation that a rule holds, or does not."""

    holds: bool
    facts: Mapping[str, str | int] = field(default_factory=dict, hash=False)
    """`vm`, `source` and `host` are managed object ids."""


@dataclass(frozen=True, slots=True)
class JudgedAssumption:
    """A rule with what was observed of it in one vCenter."""

    row: Assumption
    evidence: Observation | None = None
    """The first observation that contradicts the rule, or else the first that confirms it; None = no observation."""

    @property
    def sentence(self) -> str:
        """Return the sentence about the evidence, with the names of its facts in braces; empty = there is no
        evidence."""
        is_against = self.standing is Standing.CONTRADICTED and self.row.against
        return "" if self.evidence is None else self.row.against if is_against else self.row.evidence

    @property
    def standing(self) -> Standing:
        if self.evidence is None:
            return Standing.NOT_SEEN
        return Standing.CONFIRMED if self.evidence.holds else Standing.CONTRADICTED
