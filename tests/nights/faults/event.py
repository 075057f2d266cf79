"""Event: one thing that goes wrong in a night, in words that can be written down, replayed and left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from gpuops.sim.fault_injection.rule import Rule

GIVEN_UP: Final = "P1"
"""A person gives up the VM `target`, `at_s` after the evening."""
ASKED_FOR: Final = "P2"
"""A person asks for the VM `target` by name: `rotate restore --vm`."""
PEOPLE: Final = (GIVEN_UP, ASKED_FOR)
"""No faults: what people do with commands of gpuops, so that a night comes to a state that it has not by itself."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that goes wrong: `rules` for the simulator, or what `fault` says is done to `target` at `at_s`."""

    fault: str
    rules: tuple[Rule, ...] = ()
    target: str = ""
    at_s: float = 0.0
    point: int = 0
    """K1, K2, K5: at which boundary of the run, counted from where the last one was, and with a `target` only of runs
    of that half; K3: at which append of the night, for `at_s` seconds; K10: where memory runs out, 0 = nowhere, each
    boundary taking `at_s` seconds; K6, K11, K12: at which boundary, K6 and K12 for `at_s` seconds."""
    state: str = ""
    """A stage of the engine, or the whereabouts of a VM: it strikes as soon as that is there; then `point` counts those
    that it lets pass first."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rules": [rule.to_json() for rule in self.rules]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Event:
        return cls(**{**values, "rules": tuple(Rule.from_json(rule) for rule in values["rules"])})
