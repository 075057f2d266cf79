"""The runs that change something for hours; each sends notices to the receivers in the target's configuration.

A preview, and a run whose target names no receivers, calls the function of `execute` without notices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gpuops.execute.site import Consent, Site, agreed
from gpuops.extensions import load

if TYPE_CHECKING:
    from gpuops.errors import PolicyError
    from gpuops.execute.change.host_rounds import Told
    from gpuops.execute.change.rolling_change import ChangeConsent
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.plan.core.plan import Report
    from gpuops.plan.hosts.change.rolling_plan import ChangeReport
    from gpuops.plan.hosts.host_plan import HostRequest
    from gpuops.plan.moving.defrag import Defrag

Ran = TypeVar("Ran", bound="Report | ChangeReport")


def rotate_night(
    policy: Policy,
    site: Site,
    *,
    apply: bool,
    consent: Consent = agreed,
    unattended: bool = False,
    by_timer: bool = False,
    asks: bool = False,
) -> Report:
    """Suspend the idle desktops that the policy selects and start the ML VMs that fit in their place.

    Returns the plan and its outcomes. `unattended`: a policy without windows is refused. `by_timer`: outside the
    windows nothing is done. `asks`: the consent waits for a person, so it is requested before the lock is taken.
    """
    from gpuops.execute.rotation import rotation

    run = partial(rotation.rotate_night, policy, site, apply=apply, unattended=unattended, by_timer=by_timer, asks=asks)
    return _with_notices("rotate night", site, run, apply=apply)(consent=consent)


def rotate_day(
    policy: Policy | PolicyError | None,
    site: Site,
    *,
    apply: bool,
    consent: Consent = agreed,
    by_timer: bool = False,
    asks: bool = False,
) -> Report:
    """Stop the ML VMs that the night started and resume every desktop that it suspended.

    Each VM is returned under the policy of its night; `policy` applies to VMs that are not in the journal. Exit code 4
    if a desktop could not be returned: `plan.unmet` and the failed outcomes name each, with its reason and one safe
    command. `by_timer`: nothing is done while a window is open and no return is due. `asks` as for `rotate_night`.
    """
    from gpuops.execute.rotation import rotation

    run = partial(rotation.rotate_day, policy, site, apply=apply, by_timer=by_timer, asks=asks)
    return _with_notices("rotate day", site, run, apply=apply)(consent=consent)


def rotate_resume(
    site: Site, *, apply: bool = True, consent: Consent = agreed, unattended: bool = False, asks: bool = False
) -> Report:
    """Finish the interrupted night or day, under the policy it began with; an empty plan if none was interrupted.

    `unattended` and `asks` as for `rotate_night`. Raises Locked while a run is under way.
    """
    from gpuops.execute.rotation.rotation import resume

    run = partial(resume, site, apply=apply, unattended=unattended, asks=asks)
    return _with_notices("rotate resume", site, run, apply=apply)(consent=consent)


def rotate_restore(
    policy: Policy | PolicyError | None,
    site: Site,
    vms: tuple[str, ...] = (),
    *,
    from_markers: bool = False,
    apply: bool,
    consent: Consent = agreed,
    asks: bool = False,
) -> Report:
    """Bring back now all VMs that nights took, or only the VMs with these names. Return the plan and its outcomes.

    `from_markers`: follow vCenter's markers instead of the journal; raises UsageError without a policy. `asks` as for
    `rotate_night`.
    """
    from gpuops.execute.rotation.rotation import restore

    run = partial(restore, policy, site, vms, from_markers=from_markers, apply=apply, asks=asks)
    return _with_notices("rotate restore", site, run, apply=apply)(consent=consent)


def rotate_clear_marker(
    policy: Policy | None,
    site: Site,
    vms: tuple[str, ...],
    *,
    apply: bool,
    consent: Consent = agreed,
    asks: bool = False,
) -> Report:
    """Clear the markers of these VMs, for example of copies and of VMs with an unreadable marker; change nothing else.

    Refused for a VM that an open night of the journal holds. `asks` as for `rotate_night`.
    """
    from gpuops.execute.rotation.rotation import clear_marker

    run = partial(clear_marker, policy, site, vms, apply=apply, asks=asks)
    return _with_notices("rotate clear-marker", site, run, apply=apply)(consent=consent)


def change(
    request: HostRequest,
    verb: str,
    rolling: Rolling,
    site: Site,
    *,
    apply: bool,
    consent: ChangeConsent = agreed,
    on_progress: Told | None = None,
) -> ChangeReport:
    """Plan a change of this site's hosts by rolling reboots, and carry it out with `apply`.

    `verb`: the command as printed (`scheduler set`). `on_progress` is called with each line of progress. Without
    `apply` only the plan is returned. Raises UsageError, NotConnected, StateDamaged, Refused while another change or a
    rotation is open, Locked.
    """
    from gpuops.execute.change.rolling_change import roll, unheard

    run = partial(roll, request, verb, rolling, site, apply=apply, told=on_progress or unheard)
    return _with_notices(verb, site, run, apply=apply)(consent=consent)


def change_resume(
    site: Site, *, apply: bool = True, consent: ChangeConsent = agreed, on_progress: Told | None = None
) -> ChangeReport | Report:
    """Continue the unfinished change, of hosts or of moves; an empty plan if all changes are finished.

    A host on which the change had started is finished at any time; other hosts wait until the window is open.
    """
    from gpuops.execute.change.rolling_change import resume, unheard

    run = partial(resume, site, apply=apply, told=on_progress or unheard)
    return _with_notices("change resume", site, run, apply=apply)(consent=consent)


def change_abort(
    site: Site, *, apply: bool = True, consent: ChangeConsent = agreed, on_progress: Told | None = None
) -> ChangeReport | Report:
    """End the unfinished change: hosts on which it had started get their VMs back; the other hosts stay unchanged."""
    from gpuops.execute.change.rolling_change import abort, unheard

    run = partial(abort, site, apply=apply, told=on_progress or unheard)
    return _with_notices("change abort", site, run, apply=apply)(consent=consent)


def defrag_execute(request: Defrag, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Plan the moves of `defrag`, and with `apply` carry them out one by one; each is checked again before it starts.

    Raises UsageError and Refused as `defrag`, NotConnected, Refused while a change or a rotation is open, Locked.
    """
    from gpuops.execute.change.vm_moves import carry_out

    run = partial(carry_out, request, site, apply=apply)
    return _with_notices("defrag", site, run, apply=apply)(consent=consent)


def defrag_by_policy(
    policy: Policy, site: Site, *, apply: bool, consent: Consent = agreed, most_moves: int | None = None
) -> Report:
    """Make the moves that the policy's `defrag` allows now, at most `most_moves` of them; none outside its windows.

    Raises UsageError for a policy without `defrag`, and the errors of `defrag_execute`.
    """
    from gpuops.execute.change.vm_moves import carry_out_by_policy

    run = partial(carry_out_by_policy, policy, site, apply=apply, most_moves=most_moves)
    return _with_notices("defrag", site, run, apply=apply)(consent=consent)


def _with_notices(command: str, site: Site, run: Callable[..., Ran], *, apply: bool) -> Callable[..., Ran]:
    """Return a function that is called with `consent` and does `run`; it also sends notices if the run is applied."""
    if not apply or site.notices is None:
        return run
    # `run_watched` wraps `consent` too: a run that the admin declines causes no notice
    return partial(load("gpuops.extras.notify.run_watch.run_watched"), site.notices, command, run)
