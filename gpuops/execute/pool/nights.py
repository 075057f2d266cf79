"""What the nights of the journal have to do with a pool: which of its servers they have started, and which are over."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.execute.jobs.nightly import return_begins
from gpuops.execute.journal import Journal
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.site import Site
from gpuops.model.lent_by_night import ByNight, LentByNight, ServerNight
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.pool.by_night import NO_NIGHTS, NightsNow, StartedServer
from gpuops.plan.rotation.ml_queue.ml_vms import NO_WINDOW
from gpuops.plan.rotation.returns.return_time import Durations
from gpuops.plan.rotation.taken_vms import vms_of


def nights_now(pool: str, site: Site, inventory: Inventory) -> NightsNow:
    """Raises StateDamaged, NotConnected."""
    with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        if journal is None:
            return NO_NIGHTS
        over = journal.over()
        return NightsNow(tuple(_started(pool, journal, over, site, inventory)), over)


def _started(
    pool: str, journal: Journal, over: frozenset[str], site: Site, inventory: Inventory
) -> Iterator[StartedServer]:
    originals, now = NightVms(journal).all(), site.clock()
    durations = Durations.of(journal.durations())
    for original in originals:
        policy = original.policy
        rule = _given(policy, pool) if policy is not None else None
        if policy is None or rule is None or original.night in over or not _runs_for(original):
            continue
        # the return must begin then; a night without desktops, or without a window, has no such moment
        begins = return_begins(policy, originals, inventory, durations, now) or now + NO_WINDOW
        night = policy.night_at(now)
        if policy.windows and night is None:
            continue  # its window is over: the return stops it, however late that is
        until = (min(begins, night.closes) if night is not None else begins) - rule.grace
        use = ServerNight(original.night, ByNight.GIVE, until, policy.marker)
        for vm in vms_of(original, inventory):
            if vm.power is PowerState.ON and vm.instance_uuid is not None:
                yield StartedServer(vm.instance_uuid, use)


def _runs_for(original: Original) -> bool:
    """Whether it is a VM that the night has started from its queue, and not stopped."""
    return original.role is Role.ML and original.taken and not (original.stopped or original.returned)


def _given(policy: Policy, pool: str) -> LentByNight | None:
    return next((each for each in policy.lending if each.pool == pool and each.by_night is ByNight.GIVE), None)
