"""Preview the next night (`rotate plan`) and its ML queue (`gpuops queue`), or skip that night (`rotate skip-next`)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path

from gpuops.advise.forecast import Forecast, forecast
from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.past.past_runs import FollowedNights
from gpuops.execute.rotation.installed_timers import timer_misfits
from gpuops.execute.rotation.night_extension import add_to_queue, by_owners, desktop_use
from gpuops.execute.rotation.night_setup import require_mode
from gpuops.execute.rotation.watch import planned_once
from gpuops.execute.runs import NightVms, RunKind, known_originals, remembered_policy
from gpuops.execute.site import Site, catalog_of
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.ml_queue.queue_look import QueueLook, look_at_queue
from gpuops.plan.rotation.nights.bounds import Skip, moment_to_take, next_night_to_take
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.preview import NightPreview, morning_of, preview_night
from gpuops.plan.rotation.returns.return_time import Durations


def preview(
    policy: Policy | None, site: Site, at: datetime | time | None = None, policy_file: Path | None = None
) -> NightPreview:
    """Return the night that would begin at this moment if vCenter's state stayed as it is now. Writes nothing.

    `policy` None = the policy of the last night in the journal. `at` None = now, or, outside the windows of the policy
    and once the return of tonight's night has begun, when the next window opens. A moment without an offset is in the
    zone of the windows; a time of day alone is its next occurrence. `policy_file`: the file of the policy, to check the
    installed timers. Raises UsageError if the moment or the policy cannot be determined.
    """
    request, moment = request_of_night(policy, site, at)
    chosen_policy = request.policy
    inventory = site.read_for_policy(site.vcenter.inventory(), chosen_policy)
    try:
        forecasts, no_forecast = _read_forecasts(chosen_policy, site, inventory, moment), ""
    except StateDamaged as damaged:  # a night can be planned without measurements
        forecasts, no_forecast = {}, damaged.line
    foreseen = preview_night(request, inventory, catalog_of(inventory), moment, forecasts, no_forecast)
    return replace(foreseen, timers=timer_misfits(chosen_policy, site, policy_file))


def request_of_night(
    policy: Policy | None, site: Site, at: datetime | time | None = None
) -> tuple[RotateNight, datetime]:
    """Return the request for that night, with what the journal knows, and its start.

    Arguments and errors are those of `preview`.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        chosen_policy = policy or remembered_policy(journal)
        require_mode(RunKind.NIGHT, chosen_policy)
        ended_nights = journal.ended_nights() if journal else frozenset()
        moment = _resolve_moment(chosen_policy, at, site.clock(), ended_nights)
        originals = known_originals(journal, chosen_policy, moment)
        measured = Durations.of(journal.durations() if journal else {})
        skipped = journal.skipped_nights(chosen_policy.name) if journal else frozenset()
        setbacks = journal.setbacks() if journal else {}
        past = FollowedNights().nights(journal) if chosen_policy.fair_share is not None else ()
    past, chosen_policy = by_owners(tuple(past), site), add_to_queue(chosen_policy.at_night(moment), site)
    return RotateNight(chosen_policy, originals, measured, skipped, setbacks, returning=ended_nights, past=past), moment


def _read_forecasts(policy: Policy, site: Site, inventory: Inventory, at: datetime) -> dict[str, Forecast]:
    """Return pool -> forecast from `at` until after the morning; empty if nothing was measured."""
    night = policy.night_at(at)
    _, until = morning_of(night, at)
    zone = night.zone if night is not None else policy.windows[0].zone if policy.windows else UTC
    histories = desktop_use(site, inventory, policy)
    return {name: forecast(history, at, until, zone) for name, history in histories.items()}


def _resolve_moment(policy: Policy, at: datetime | time | None, now: datetime, ended_nights: Set[str]) -> datetime:
    match at:
        case None:
            moment = moment_to_take(policy, now)
            # once tonight's return has begun, only the next night can take anything
            following = policy.next_night(moment) if policy.night(moment) in ended_nights else None
            return following.opens if following is not None else moment
        case datetime():
            return policy.moment(at)
        case time():
            return policy.next_at(at, now)


def skip_next(policy: Policy, site: Site, *, undo: bool = False) -> Skip:
    """Note in the journal that the next night of the policy is skipped; with `undo`, remove that note.

    Raises UsageError for a policy without windows, and Locked while a rotation runs, which may be that night.
    """
    skipped = not undo
    with site.locked_journal(site.vcenter.uuid, alone=False) as journal:
        now = site.clock()
        tonight = policy.night_at(now)
        night = next_night_to_take(policy, NightVms(journal).all(tonight.id if tonight else None), now)
        was_skipped = night.id in journal.skipped_nights(policy.name)
        if was_skipped is not skipped:
            journal.skip(policy.name, night.id, skipped=skipped)
        return Skip(policy.name, night, skipped, was_skipped is not skipped)


def queue_look(policy: Policy | None, site: Site, at: datetime | time | None = None) -> QueueLook:
    """Return the queue at this moment if vCenter's state stayed as it is now. Writes nothing.

    `policy` None = the policy of the last night in the journal. `at` as for `preview`; under `mode: spare-capacity` the
    queue is always that of now, and a moment is refused (UsageError).
    """
    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = remembered_policy(journal)
    if policy.spare is not None:
        if at is not None:
            raise UsageError(
                "--at: under `mode: spare-capacity` gpuops shows only the present queue", hint="leave out --at"
            )
        request, inventory, moment = planned_once(policy, site)
        catalog = catalog_of(inventory)
        night_plan = request.night_plan(request.survey_desktops(inventory, catalog, moment), inventory, catalog, moment)
        return look_at_queue(night_plan, inventory, catalog, moment)
    night_preview = preview(policy, site, at)
    starts_at = {expected.start.vm.ref: expected.run.begins for expected in night_preview.expected_runs}
    return look_at_queue(
        night_preview.night_plan,
        night_preview.inventory,
        catalog_of(night_preview.inventory),
        night_preview.at,
        starts_at,
    )
