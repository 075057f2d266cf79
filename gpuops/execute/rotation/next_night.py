"""Previews the night of a moment for `rotate plan`, and notes for `rotate skip-next` that the next one is not taken."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path

from gpuops.advise.forecast import Forecast, forecast
from gpuops.errors import StateDamaged
from gpuops.execute.jobs.night_jobs import by_owners_of_jobs, with_jobs
from gpuops.execute.measurements.demand import in_use
from gpuops.execute.past.followed_nights import FollowedNights
from gpuops.execute.rotation.installed_timers import timer_misfits
from gpuops.execute.rotation.required import require_mode
from gpuops.execute.runs.nights import NightVms, known_originals, remembered_policy
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, catalog_of
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.nights.bounds import Skip, moment_to_take, next_to_take
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.preview import NightPreview, morning_of, preview_night
from gpuops.plan.rotation.returns.return_time import Durations


def preview(
    policy: Policy | None,
    site: Site,
    at: datetime | time | None = None,
    policy_file: Path | None = None,
) -> NightPreview:
    """The night that would begin at this moment, if vCenter then looked as it does now. Nothing is ever written.

    `policy` None = the one of the last night in the journal. `at` None = now, or where no window of the policy takes
    desktops when the next one opens; one without an offset is read in the zone of the windows, and a time of day alone
    is the next such. `policy_file`: that of the policy, whose timers are looked at. Raises UsageError for a moment or a
    policy that cannot be told.
    """
    request, moment = night_asked(policy, site, at)
    obeyed = request.policy
    seen = site.judged(site.vcenter.inventory(), obeyed)
    try:
        forecasts, no_forecast = _forecasts(obeyed, site, seen, moment), ""
    except StateDamaged as damaged:  # no night needs what was measured
        forecasts, no_forecast = {}, damaged.line
    foreseen = preview_night(request, seen, catalog_of(seen), moment, forecasts, no_forecast)
    return replace(foreseen, timers=timer_misfits(obeyed, site, policy_file))


def night_asked(policy: Policy | None, site: Site, at: datetime | time | None = None) -> tuple[RotateNight, datetime]:
    """The request for that night with what the journal knows, and its moment; arguments and errors of `preview`."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        obeyed = policy or remembered_policy(journal)
        require_mode(RunKind.NIGHT, obeyed)
        moment = _moment(obeyed, at, site.clock())
        originals = known_originals(journal, obeyed, moment)
        measured = Durations.of(journal.durations() if journal else {})
        skipped = journal.skipped_nights(obeyed.name) if journal else frozenset()
        setbacks = journal.setbacks() if journal else {}
        over = journal.ended_nights() if journal else frozenset()
        past = FollowedNights().nights(journal) if obeyed.fair_share is not None else ()
    past, obeyed = by_owners_of_jobs(past, site), with_jobs(obeyed.at_night(moment), site)
    return RotateNight(obeyed, originals, measured, skipped, setbacks, returning=over, past=past), moment


def _forecasts(policy: Policy, site: Site, seen: Inventory, at: datetime) -> dict[str, Forecast]:
    """Pool -> what is expected of it from then until after the morning; empty where nothing was measured."""
    night = policy.night_at(at)
    _, until = morning_of(night, at)
    zone = night.zone if night is not None else policy.windows[0].zone if policy.windows else UTC
    histories = in_use(*site.measurements_store, seen, policy)
    return {name: forecast(history, at, until, zone) for name, history in histories.items()}


def _moment(policy: Policy, at: datetime | time | None, now: datetime) -> datetime:
    match at:
        case None:
            return moment_to_take(policy, now)
        case datetime():
            return policy.moment(at)
        case time():
            return policy.next_at(at, now)


def skip_next(policy: Policy, site: Site, *, undo: bool = False) -> Skip:
    """The next night of the policy is not taken, as the journal says from then on; with `undo` it is after all.

    Raises UsageError for a policy without windows, Locked while a rotation runs: it may be that very night.
    """
    skipped = not undo
    with site.locked_journal(site.vcenter.uuid, alone=False) as journal:
        now = site.clock()
        tonight = policy.night_at(now)
        night = next_to_take(policy, NightVms(journal).all(tonight.id if tonight else None), now)
        was = night.id in journal.skipped_nights(policy.name)
        if was is not skipped:
            journal.skip(policy.name, night.id, skipped=skipped)
        return Skip(policy.name, night, skipped, was is not skipped)
