"""The content of `rotate status`: which VMs nights have taken, where each is, and whether a run was interrupted.
`execute` fills it in, and `report` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuops.errors import StateDamaged
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.core.abandonment import Missed
from gpuops.plan.rotation.lease_rules import Lease
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts


@dataclass(frozen=True, slots=True)
class NightStanding:
    """The nights that are not over, in two figures."""

    desktops_away: int
    """Number of desktops suspended or shut down for a night and not back."""
    back_by: datetime | None
    """When they are due; None = no desktop is away, or there is no window."""


@dataclass(frozen=True, slots=True)
class RotationStatus:
    """The state of a rotation at one moment."""

    vcenter: str
    policy: str | None
    """Name of the requested policy, or of the policy of the last night; None = neither."""
    cut_off: str | None
    """`rotate night` or `rotate day` if the last run began and did not end: `gpuops rotate resume` completes it.

    None also while a run is in progress."""
    cut_off_since: datetime | None
    remembered: bool
    """Whether this machine's journal knows a night of this vCenter."""
    marker: str
    """The custom attribute of the markers."""
    under_way: LockHolder | None
    """The run in progress on this machine; then no run is interrupted."""
    doing: str | None
    """`rotate night` or `rotate day`, if it is in progress; None = it has not begun to change anything."""
    vms: tuple[TakenVm, ...]
    """Every VM of nights that are not over, desktops first."""
    names: Mapping[str, str]
    """Host ref -> name."""
    lock_vm: str | None = None
    """Name of the lock VM in the policy."""
    lease: Lease | None = None
    """The current lease on any machine, or the last one that was not given back."""
    lock_trouble: str = ""
    """Why the holder of the lease cannot be read."""
    journal_lost: str = ""
    """Why the journal of this machine cannot be read: the status then comes from vCenter's markers only."""
    given_up: tuple[Missed, ...] = ()
    """Hosts and VMs that a person gave up and that are not back, without those in `vms`."""
    skipped: tuple[str, ...] = ()
    """Open and coming nights of the policy that `rotate skip-next` skips."""
    overdue: tuple[Overdue, ...] = ()
    """The vCenters of this journal, also other ones, without a return that was due."""
    overdue_unknown: tuple[str, ...] = ()
    """The vCenters of this journal for which that is unknown, and why."""
    timers: tuple[str, ...] = ()
    """Where the timers and cron lines of this machine do not fit the windows of the policy."""

    @property
    def exit_code(self) -> int:
        """The exit code of a damaged journal, or 0."""
        return StateDamaged.exit_code if self.journal_lost else 0

    @property
    def away(self) -> tuple[TakenVm, ...]:
        """Desktops still suspended and ML VMs still running."""
        return tuple(taken_vm for taken_vm in self.vms if taken_vm.whereabouts is Whereabouts.AWAY)

    @property
    def changing(self) -> tuple[TakenVm, ...]:
        """VMs that a task is suspending, resuming, starting or stopping."""
        return tuple(taken_vm for taken_vm in self.vms if taken_vm.whereabouts is Whereabouts.CHANGING)
