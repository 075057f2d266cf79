"""Reads the catalogue of faults that clients of a vCenter meet, by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Rule


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what a client sees of it, and the rules that make it so."""

    id: str
    sees: str
    rules: tuple[Rule, ...]


@cache
def catalogue() -> Mapping[str, Fault]:
    """Every fault by its id, in the order of the file."""
    source = resources.files("gpuops.sim.fault_injection").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    return {
        name: Fault(name, entry["sees"], tuple(Rule.from_json(rule) for rule in entry["rules"]))
        for name, entry in yaml.safe_load(source).items()
    }


def rules_of(fault: str, changes: Mapping[str, Any] | None = None) -> tuple[Rule, ...]:
    """The rules of a fault with some keys changed. Raises UsageError for an id or a key that there is not."""
    declared_fault = catalogue().get(fault)
    if declared_fault is None:
        raise UsageError(f"no fault is called {fault!r}", hint="gpuops sim faults lists them")
    if "effect" in (changes or {}):
        raise UsageError(f"{fault} has its effect", hint="leave out `fault` to write a rule of your own")
    return tuple(Rule.from_json({**rule.to_json(), **(changes or {})}) for rule in declared_fault.rules)
