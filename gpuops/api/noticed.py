"""The runs that take, return or change something for hours, each with its notice; and notices of themselves.

A run whose target names no receivers, and one that is only looked at, is the function of `execute` as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpuops.execute.site import Consent, Site, agreed

if TYPE_CHECKING:
    from gpuops.errors import PolicyError
    from gpuops.execute.change.host_rounds import Told
    from gpuops.execute.change.rolling_change import Agreed
    from gpuops.execute.site.notice_way import NoticeWay
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.notice import Receipt
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
    """Suspends the idle desktops that the policy selects and starts the ML VMs that fit in their place.

    Returns what was planned and what became of it. `unattended`: nobody watches, so that a policy without windows is
    refused. `by_timer`: outside its hours there is nothing to do. `asks`: the consent waits for somebody's answer, so
    it is asked for before the lock is taken.
    """
    from gpuops.execute.rotation import rotation

    def run(asked: Consent) -> Report:
        return rotation.rotate_night(
            policy,
            site,
            apply=apply,
            consent=asked,
            unattended=unattended,
            by_timer=by_timer,
            asks=asks,
        )

    return _noticed("rotate night", site, consent, run, apply)


def rotate_day(
    policy: Policy | PolicyError | None,
    site: Site,
    *,
    apply: bool,
    consent: Consent = agreed,
    by_timer: bool = False,
    asks: bool = False,
) -> Report:
    """Stops the ML VMs that the night started and resumes every desktop that it suspended.

    Each under the policy of its night. Exit code 4 when a desktop could not be returned: `plan.unmet` and the failed
    outcomes name each, with its reason and one safe command. `by_timer`: while a window is open and nothing is due,
    there is nothing to do. `asks` as for `rotate_night`.
    """
    from gpuops.execute.rotation import rotation

    def run(asked: Consent) -> Report:
        return rotation.rotate_day(policy, site, apply=apply, consent=asked, by_timer=by_timer, asks=asks)

    return _noticed("rotate day", site, consent, run, apply)


def rotate_resume(
    site: Site, *, apply: bool = True, consent: Consent = agreed, unattended: bool = False, asks: bool = False
) -> Report:
    """Finishes the night or day that was cut off, under the policy it began with; an empty plan when none was.

    `unattended` and `asks` as for `rotate_night`. Raises Locked while a run is under way.
    """
    from gpuops.execute.rotation.rotation import resume

    def run(asked: Consent) -> Report:
        return resume(site, apply=apply, consent=asked, unattended=unattended, asks=asks)

    return _noticed("rotate resume", site, consent, run, apply)


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
    """Brings back now what nights took: all of it, or the VMs of these names alone.

    `from_markers` goes by vCenter's markers and by no journal; raises UsageError then without a policy.
    """
    from gpuops.execute.rotation.rotation import restore

    def run(asked: Consent) -> Report:
        return restore(policy, site, vms, from_markers=from_markers, apply=apply, consent=asked, asks=asks)

    return _noticed("rotate restore", site, consent, run, apply)


def rotate_clear_marker(
    policy: Policy | None,
    site: Site,
    vms: tuple[str, ...],
    *,
    apply: bool,
    consent: Consent = agreed,
    asks: bool = False,
) -> Report:
    """Clears the markers of these VMs and does nothing else to them: copies, and VMs whose marker cannot be read.

    Refused for a VM that an open night of the journal holds. `asks` as for `rotate_night`.
    """
    from gpuops.execute.rotation.rotation import clear_marker

    def run(asked: Consent) -> Report:
        return clear_marker(policy, site, vms, apply=apply, consent=asked, asks=asks)

    return _noticed("rotate clear-marker", site, consent, run, apply)


def change(
    request: HostRequest,
    verb: str,
    rolling: Rolling,
    site: Site,
    *,
    apply: bool,
    consent: Agreed | None = None,
    told: Told | None = None,
) -> ChangeReport:
    """What the request would change on this site's hosts by rolling reboots, and with `apply` what became of it.

    `verb` is the command for people (`scheduler set`), `told` is called with a line as it goes on. Raises UsageError,
    NotConnected, StateDamaged, Refused while another change or a rotation is open, Locked.
    """
    from gpuops.execute.change.rolling_change import agreed, roll, unheard

    def run(asked: Agreed) -> ChangeReport:
        return roll(request, verb, rolling, site, apply=apply, consent=asked, told=told or unheard)

    return _noticed(verb, site, consent or agreed, run, apply)


def change_resume(
    site: Site, *, apply: bool = True, consent: Agreed | None = None, told: Told | None = None
) -> ChangeReport | Report:
    """Goes on with the change that did not end, of hosts or of moves; an empty plan when there is none.

    A host whose turn has begun is finished at any hour; no other is begun while the window is closed.
    """
    from gpuops.execute.change.rolling_change import agreed, resume, unheard

    def run(asked: Agreed) -> ChangeReport | Report:
        return resume(site, apply=apply, consent=asked, told=told or unheard)

    return _noticed("change resume", site, consent or agreed, run, apply)


def change_abort(
    site: Site, *, apply: bool = True, consent: Agreed | None = None, told: Told | None = None
) -> ChangeReport | Report:
    """Ends the change: hosts whose turn has begun serve VMs again, with their own back; the others are left alone."""
    from gpuops.execute.change.rolling_change import abort, agreed, unheard

    def run(asked: Agreed) -> ChangeReport | Report:
        return abort(site, apply=apply, consent=asked, told=told or unheard)

    return _noticed("change abort", site, consent or agreed, run, apply)


def defrag_execute(request: Defrag, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """The moves that `defrag` plans, and with `apply` what became of each: one after another, each asked about again.

    Raises UsageError and Refused as `defrag`, NotConnected, Refused while a change or a rotation is open, Locked.
    """
    from gpuops.execute.change.moves import carry_out as run

    return _noticed("defrag", site, consent, lambda asked: run(request, site, apply=apply, consent=asked), apply)


def notify_test(way: NoticeWay) -> tuple[Receipt, ...]:
    """Sends a test notice to each receiver, and what became of it. Raises UsageError without the extra `notify`."""
    from gpuops.notify.watch import send_test

    return send_test(way)


def notify_flush(way: NoticeWay) -> tuple[Receipt, ...]:
    """Sends the notices that nobody has accepted yet, and tells of runs whose process is gone.

    Raises UsageError without the extra `notify`, StateDamaged.
    """
    from gpuops.notify.watch import flush

    return flush(way)


def _noticed(command: str, site: Site, consent: Callable[..., None], run: Callable[..., Ran], apply: bool) -> Ran:
    if not apply or site.notices is None:
        return run(consent)
    from gpuops.notify.watch import run_watched

    return run_watched(site.notices, command, consent, run)
