"""Read the table of the rules of vSphere and NVIDIA that gpuops and its simulated vCenter both follow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from gpuops.model.assumption import Assumption, Confidence, SessionStep


@cache
def assumptions() -> Mapping[str, Assumption]:
    """Return all rows by id, in the order of the file."""
    return {
        id: Assumption(id, **{**row, "confidence": Confidence(row["confidence"])})
        for id, row in _load("assumptions.yaml").items()
    }


@cache
def contact_session() -> tuple[SessionStep, ...]:
    """Return the steps that settle what no look at a vCenter shows, in their order."""
    steps = _load("contact_session.yaml")["steps"]
    return tuple(
        SessionStep(**{**step, "settles": tuple(step["settles"]), "commands": tuple(step["commands"])})
        for step in steps
    )


@cache
def contact_setup() -> tuple[str, ...]:
    """Return the commands before the session, which name its hosts and VMs."""
    return tuple(_load("contact_session.yaml")["setup"])


def _load(name: str) -> Any:
    return yaml.safe_load(files("gpuops.catalog").joinpath(name).read_text(encoding="utf-8"))
