"""The functions about rotations: night and day, what they have suspended and started, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.execute.site import Consent, Site, agreed
from gpuops.plan.core.outcome import Report

if TYPE_CHECKING:
    from gpuops.errors import PolicyError
    from gpuops.model.journal import Audit
    from gpuops.model.rotation import Policy
    from gpuops.plan.core.given_up import Abandonment
    from gpuops.plan.rotation.bounds import Skip
    from gpuops.plan.rotation.lease import Lease
    from gpuops.plan.rotation.preview import NightPreview
    from gpuops.plan.rotation.setup import Setup
    from gpuops.plan.rotation.status import RotationStatus


def rotate_night(policy: Policy, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Suspends the idle desktops the policy selects and starts the ML VMs that fit in their place."""
    from gpuops.execute.rotation.rotation import rotate
    from gpuops.execute.runs.run_kind import RunKind

    return rotate(RunKind.NIGHT, policy, site, apply=apply, consent=consent)


def rotate_plan(policy: Policy | None, site: Site, at: datetime | None = None) -> NightPreview:
    """The night that would begin at this moment, if vCenter then looked as it does now. Nothing is ever written.

    `policy` None = the one of the last night in the journal. `at` None = now; one without an offset is read in the
    zone of the policy's windows. Raises UsageError for a moment or a policy that cannot be told.
    """
    from gpuops.execute.rotation.next_night import preview

    return preview(policy, site, at)


def rotate_day(policy: Policy | PolicyError | None, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Stops the ML VMs that the night started and resumes every desktop that it suspended.

    Each under the policy of its night. `policy` speaks for what the journal does not know; None, or one that cannot be
    read, which `plan.unmet` then says = that of the last night does. Exit code 4 when a desktop could not be returned:
    `plan.unmet` and the failed outcomes name each, with its reason and one safe command.
    """
    from gpuops.execute.rotation.rotation import rotate
    from gpuops.execute.runs.run_kind import RunKind

    return rotate(RunKind.DAY, policy, site, apply=apply, consent=consent)


def rotate_restore(
    policy: Policy | PolicyError | None,
    site: Site,
    vms: tuple[str, ...] = (),
    *,
    from_markers: bool = False,
    apply: bool,
    consent: Consent = agreed,
) -> Report:
    """Brings back now what nights took: all of it, or the VMs of these names alone.

    `from_markers` goes by vCenter's markers and by no journal; raises UsageError then without a policy. An ML VM that
    is not named runs on: a desktop that finds no room beside it is named, with who holds the GPUs (exit code 4).
    """
    from gpuops.execute.rotation.rotation import restore

    return restore(policy, site, vms, from_markers=from_markers, apply=apply, consent=consent)


def rotate_resume(site: Site, *, apply: bool = True, consent: Consent = agreed) -> Report:
    """Finishes what a killed night or day had begun, under the policy it began with; an empty plan = none was."""
    from gpuops.execute.rotation.rotation import resume

    return resume(site, apply=apply, consent=consent)


def rotate_skip_next(policy: Policy, site: Site, *, undo: bool = False) -> Skip:
    """The next night of the policy is not taken, as the journal says from then on; with `undo` it is after all.

    Raises UsageError for a policy without windows, Locked while a rotation runs.
    """
    from gpuops.execute.rotation.next_night import skip_next

    return skip_next(policy, site, skipped=not undo)


def rotate_init(policy: Policy, site: Site, *, apply: bool = True) -> Setup:
    """What the policy wants of the vCenter: custom attributes and the lock VM, made if `apply` where they are missing.

    For a login that may; the nights' own need not. Names the desktops that no owner has agreed to. Raises NoPermission
    and Refused where nothing was changed, PartlyDone with what was made before something failed.
    """
    from gpuops.execute.rotation.setup import set_up

    return set_up(policy, site, apply=apply)


def rotate_unlock(policy: Policy | None, site: Site, nonce: str | None, *, force: bool = False) -> Lease:
    """Gives the lease on the policy's lock VM back in its holder's place, if its id is this very one.

    For a run on another machine that is dead for certain; nobody has to, since it runs out by itself. Raises Refused,
    naming the holder, for any other id, and Locked for a lease that was renewed just now, unless by `force`.
    """
    from gpuops.execute.rotation.unlock import unlock

    return unlock(policy, site, nonce, force=force)


def rotate_abandon(
    site: Site,
    vm: str,
    policy: Policy | None = None,
    *,
    apply: bool = True,
    consent: Callable[[Abandonment], None] = lambda found: None,
) -> Abandonment:
    """Gives up one VM that a night holds: no morning waits for it any more; nothing is sent to vCenter.

    One that this machine's journal does not know is held by its marker, under the custom attribute of `policy`; None =
    that of the last night. Raises Refused where no night holds such a VM, Locked while a rotation runs.
    """
    from gpuops.execute.rotation.abandon_vm import abandon_vm

    return abandon_vm(site, vm, policy, apply=apply, consent=consent)


def rotate_status(site: Site, policy: Policy | None = None) -> RotationStatus:
    """What the nights that are not over have taken, and where each VM is now.

    `policy` None = the one of the last night in the journal. By vCenter's markers alone where the journal is damaged:
    `journal_lost` then says why.
    """
    from gpuops.execute.rotation.status import status

    return status(site, policy)


def rotate_audit_verify(state_dir: Path, journal_url: str = "", head: str = "") -> Audit:
    """How far the journal can be trusted: the file in the state directory, or the PostgreSQL database at the URL.

    `head` is one that an earlier audit gave: it must still be there. Raises StateDamaged for what cannot be read at
    all, and UsageError.
    """
    from gpuops.execute.journal.audit import verify

    return verify(state_dir, journal_url, head)
