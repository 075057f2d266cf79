"""The table of assumptions: rules of vSphere and NVIDIA that gpuops and its simulated vCenter both go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml

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
    """One row of `assumptions.yaml`, which says what each field means."""

    id: str
    statement: str
    source: str
    confidence: Confidence
    deviation: str = ""
    """Empty = the simulated vCenter knows no other behaviour."""
    prediction: Predicted | None = None


@cache
def assumptions() -> Mapping[str, Assumption]:
    """Return all rows by id, in the order of the file."""
    rows = yaml.safe_load(files("gpuops.catalog").joinpath("assumptions.yaml").read_text(encoding="utf-8"))
    return {
        id: Assumption(
            id,
            row["statement"],
            row["source"],
            Confidence(row["confidence"]),
            row.get("deviation", ""),
            Predicted(row["prediction"]) if "prediction" in row else None,
        )
        for id, row in rows.items()
    }
