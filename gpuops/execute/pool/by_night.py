"""Nights and pools of lent GPUs: a night drains the servers that it takes, a return takes back those that it stops.

A night waits for what it drains, for the policy's grace at the most, before it takes the lock: whoever is killed
meanwhile leaves servers that lend nothing more, whose leases `pool reclaim --due` ends and which lend again once the
night is over. A server that is not drained by then keeps its mark, and no night takes it.
A return waits for no lease: what it stops is taken back in the book first, within a minute, and then stops whatever
became of that. Whatever fails here is told, and the night or the return goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown
from gpuops.execute.jobs.bounded_work import side_by_side
from gpuops.execute.jobs.nightly import LOOK, refused_beside_another
from gpuops.execute.pool.book import PoolBooks
from gpuops.execute.pool.running import night_change, reclaim
from gpuops.execute.runs.nights import policies_of
from gpuops.execute.site import Site
from gpuops.model.lent_by_night import ByNight
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.lease_book import LeaseBook
from gpuops.plan.core.outcome import Report
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.by_night import (
    last_end,
    lends_by_night,
    night_drains,
    not_there,
    return_takes_back,
    standing,
    taken_back,
    to_drain,
)
from gpuops.plan.pool.reclaim import Reclaim

PoolTold = Callable[[PoolAnswer], None]
"""Told of what clients lose, once it is written down."""
LATE: Final = timedelta(minutes=2)
"""What the end of a lease may take in guests: a night waits so much longer than until the last one is over."""
PAUSE: Final = timedelta(seconds=20)
LOOKS_EVERY: Final = timedelta(minutes=5)
"""A session of vCenter that nobody uses for 30 minutes ends (VMware's default)."""


def nobody_told(answer: PoolAnswer) -> None:
    """Of a caller that sends no notices."""


def drain_for_night(policy: Policy, looked: Report, site: Site, told: PoolTold) -> None:
    """The servers that the night of this look takes lend nothing more, as far as that can be had within the grace."""
    if not taken_back(policy) or not looked.plan.feasible or not looked.plan.steps:
        return
    try:
        by_pool = to_drain(policy, looked.plan.steps, site.vcenter.inventory())
    except NotConnected:
        return  # the night tells of it
    for pool, vms in by_pool.items():
        try:
            _drain(policy, pool, vms, site, told)
        except NotConnected:
            return
        except GpuopsError as error:
            site.say(f"pool {pool}: {_names(vms)} not drained, and left alone tonight: {error.line}")


def _drain(policy: Policy, pool: str, vms: Iterable[Vm], site: Site, told: PoolTold) -> None:
    vms = tuple(vms)
    uuids = {vm.instance_uuid for vm in vms if vm.instance_uuid is not None}

    def drained(book: LeaseBook) -> LeaseBook:
        now = site.clock()
        return night_drains(book, uuids, policy, policy.night(now), now)

    answer = night_change(pool, drained, site)
    told(answer)
    last = last_end(answer.after, uuids)
    if last is None:
        return
    site.say(f"pool {pool}: {_names(vms)} drained for the night, the last lease ends at {last:%H:%M:%SZ}")
    until = min(last, site.clock() + taken_back(policy)[pool].grace) + LATE
    while (now := site.clock()) < until and last is not None:
        # first until leases are over, then as often as guests that do not answer may be asked
        site.pause(min(max(last - now, PAUSE), until - now, LOOKS_EVERY).total_seconds())
        answer = reclaim(pool, Reclaim(), site, nobody_told, apply=True)
        told(answer)
        last = last_end(answer.after, uuids)
    if last is not None:
        site.say(f"pool {pool}: a client is not cut off, so its server is left alone tonight; gpuops pool show tells")


def _names(vms: Iterable[Vm]) -> str:
    return ", ".join(vm.name for vm in vms)


def taken_before_return(site: Site, told: PoolTold) -> None:
    """What nights have had lend is taken back at once, before the return stops it; bounded, and told where it fails."""

    def taken() -> None:
        for answer in _take_back(site):
            told(answer)  # a receiver of notices may hang too

    try:
        if not side_by_side([taken], LOOK.total_seconds()):
            raise OutcomeUnknown(f"not done within {LOOK.total_seconds():.0f} s")
    except NotConnected:
        return  # the return tells of it, and waits for its vCenter
    except Exception as error:  # whatever it is, the return goes on: desktops come first
        why = error.message if isinstance(error, GpuopsError) else f"{type(error).__name__}: {error}"
        site.say(f"lent GPUs were not taken back before their servers stop: {why}")


def _take_back(site: Site) -> Iterator[PoolAnswer]:
    with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        policies = policies_of(journal)
    pools = {each.pool for policy in policies for each in policy.lending if each.by_night is ByNight.GIVE}
    if not pools or refused_beside_another(policies, site):
        return  # what lends may lend on
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        # what else is to be done in the guests of a pool keeps no return waiting
        names = [name for name in sorted(pools) if (book := books.read(name)) is not None and lends_by_night(book)]
    for pool in names:
        try:
            yield night_change(pool, lambda book: return_takes_back(book, site.clock()), site)
        except NotConnected:
            raise
        except GpuopsError as error:
            site.say(f"pool {pool}: lent GPUs were not taken back before their servers stop: {error.message}")


def pools_not_there(policy: Policy, site: Site) -> tuple[str, ...]:
    """What a night says of pools that its policy names and the book has not; and where that cannot be told."""
    if not policy.lending:
        return ()
    try:
        with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
            return tuple(not_there(policy, books.names()))
    except GpuopsError as error:
        return (f"lending: which pools are there is not known: {error.message}",)


def standing_now(site: Site) -> tuple[str, ...]:
    """What nights have to do with servers of pools now, and what cannot be told."""
    try:
        with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
            found = [book for name in books.names() if (book := books.read(name)) is not None]
    except GpuopsError as error:
        return (f"what nights have to do with pools of lent GPUs is not known: {error.message}",)
    return tuple(line for book in found for line in standing(book))
