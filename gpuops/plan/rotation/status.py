"""What `rotate status` shows: which VMs nights have taken, where each is, and whether a run was cut off. `execute`
fills it in, and `report` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuops.errors import StateDamaged
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.core.given_up import Missed
from gpuops.plan.rotation.lease import Lease
from gpuops.plan.rotation.returns.overdue import Overdue
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts


@dataclass(frozen=True, slots=True)
class NightStanding:
    """What the nights that are not over hold, in two figures."""

    desktops_away: int
    """Suspended or shut down for a night, and not back."""
    back_by: datetime | None
    """When they are due; None = none is away, or no window says when."""


@dataclass(frozen=True, slots=True)
class RotationStatus:
    """A rotation at one moment."""

    vcenter: str
    policy: str | None
    """Name of the policy that was asked for, or else of the one the last night ran under; None = neither."""
    cut_off: str | None
    """`rotate night` or `rotate day` when the last run began and did not end: `gpuops rotate resume` finishes it.

    None as well while a run is under way."""
    cut_off_since: datetime | None
    remembered: bool
    """Whether this machine's journal knows a night of this vCenter."""
    marker: str
    """The custom attribute that was looked for."""
    under_way: LockHolder | None
    """Who rotates it from this machine right now; then nothing is cut off."""
    doing: str | None
    """`rotate night` or `rotate day`, whichever is under way; None = it has not begun to change anything."""
    vms: tuple[TakenVm, ...]
    """Every VM of nights that are not over, desktops first."""
    names: Mapping[str, str]
    """Host ref -> name."""
    lock_vm: str | None = None
    """The VM that carries the lease, as the policy has it."""
    lease: Lease | None = None
    """Who holds it, on whatever machine, or held it last and did not give it back."""
    lock_trouble: str = ""
    """Why the holder of the lease cannot be read."""
    journal_lost: str = ""
    """Why the journal of this machine cannot be read: then all of this is by vCenter's markers alone."""
    given_up: tuple[Missed, ...] = ()
    """Hosts and VMs that a person gave up and that are not back, those of `vms` left out."""
    skipped: tuple[str, ...] = ()
    """Nights of the policy, to come or open, that `rotate skip-next` said are not to be taken."""
    overdue: tuple[Overdue, ...] = ()
    """The vCenters of this journal, others too, that nobody seems to return."""
    overdue_unknown: tuple[str, ...] = ()
    """Of which vCenters of this journal that cannot be told, and why."""
    timers: tuple[str, ...] = ()
    """Where the timers and cron lines of this machine do not meet the windows of the policy."""

    @property
    def exit_code(self) -> int:
        """That of a damaged journal, or 0."""
        return StateDamaged.exit_code if self.journal_lost else 0

    @property
    def away(self) -> tuple[TakenVm, ...]:
        """Desktops still suspended and ML VMs still running."""
        return tuple(taken_vm for taken_vm in self.vms if taken_vm.whereabouts is Whereabouts.AWAY)

    @property
    def changing(self) -> tuple[TakenVm, ...]:
        """VMs that a task is just suspending, resuming, starting or stopping."""
        return tuple(taken_vm for taken_vm in self.vms if taken_vm.whereabouts is Whereabouts.CHANGING)
