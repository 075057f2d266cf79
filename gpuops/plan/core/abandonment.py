"""Abandonment: a host or VM that a person gives up by name, and what that means."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.given_up import GivenUp


@dataclass(frozen=True, slots=True)
class Abandonment:
    """What is given up, or was. `applied` False = nothing is written yet."""

    things: tuple[GivenUp, ...]
    """The host and the VMs that it takes along, or the VM."""
    means: tuple[str, ...]
    """What that means, a line each."""
    left: tuple[str, ...] = ()
    """What remains to be done, in order."""
    already: bool = False
    """It was given up before: nothing is to be done."""
    applied: bool = False

    @property
    def name(self) -> str:
        return self.things[0].name
