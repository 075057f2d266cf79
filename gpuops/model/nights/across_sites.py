"""Requests across sites: ML VMs of one name in several vCenters, of which one is to run, and where each is assigned.

A request is an entry of the queue with `across_sites: true`. Each site that may run it has a VM of that name, made from
the same template; which of them runs is told by an assignment, kept where the sites keep their common journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.model.nights.history import PastNight

ASSIGN_COMMAND: Final = "gpuops queue --site all --assign"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The one vCenter that may run a request."""

    name: str
    """Of the VM, in every site."""
    vcenter: str
    """Its instance uuid."""
    site: str
    """What the configuration file calls it."""
    team: str
    """Empty = no team is known."""
    gpus: float
    """What the VM's devices amount to there."""
    until: datetime | None
    """When desktops are due there; None = nobody has said."""
    begun: bool
    """Whether a run of that vCenter has said that it starts it, or it was seen running there."""
    version: int
    """Goes up by one with each change; a change must name the version that it has seen."""
    at: datetime
    """When it was last changed."""

    @property
    def is_promised(self) -> bool:
        """Whether GPUs are meant for it that no journal counts yet."""
        return not self.begun


def assigned_to(site: str) -> str:
    """Why another site does not start it."""
    return f"it is assigned to {site}"


@dataclass(frozen=True, slots=True)
class RequestsHere:
    """Which requests across sites may start in one vCenter."""

    mine: frozenset[str] = frozenset()
    """Names of those that are assigned to it."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it is not for this one, of those that are not: such as that it is assigned to another."""
    looking: bool = False
    """Whether it is asked what would start: what is assigned to nobody may."""

    def refusal(self, name: str) -> str:
        """Why it does not start there; empty = it may."""
        if name in self.others:
            return f"a request across sites: {self.others[name]}"
        if self.looking or name in self.mine:
            return ""
        return f"a request across sites that is assigned to no site yet: {ASSIGN_COMMAND} does it"


NOTHING_HERE: Final = RequestsHere()
"""Nothing starts that another vCenter may run as well."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other vCenters gave teams, as their journals tell, and what they are promised there."""

    nights: tuple[PastNight, ...] = ()
    promised: tuple[Assignment, ...] = ()
    """Assigned to other vCenters, and not begun there."""


NOTHING_ELSEWHERE: Final = Elsewhere()
