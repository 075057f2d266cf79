"""A rule of vSphere or NVIDIA that gpuops plans by, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.prediction import Predicted


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
    deviation: str = ""
    """Empty = the simulated vCenter knows no other behaviour."""
    prediction: Predicted | None = None
