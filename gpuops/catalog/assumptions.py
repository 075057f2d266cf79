"""Read the table of the rules of vSphere and NVIDIA that gpuops and its simulated vCenter both follow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

from gpuops.model.assumption import Assumption, Confidence, SessionStep


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
            row.get("read", ""),
        )
        for id, row in rows.items()
    }


@cache
def contact_session() -> tuple[SessionStep, ...]:
    """Return the steps that settle what no look at a vCenter shows, in their order."""
    steps = yaml.safe_load(files("gpuops.catalog").joinpath("contact_session.yaml").read_text(encoding="utf-8"))
    return tuple(
        SessionStep(
            step["minutes"],
            tuple(step["settles"]),
            tuple(step["commands"]),
            step.get("contradicted", ""),
            step.get("restarts", ""),
        )
        for step in steps
    )
