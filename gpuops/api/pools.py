"""Pools of GPUs lent over the network; clients that lose something before its time are told of by a notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.execute.pool import running

if TYPE_CHECKING:
    from gpuops.execute.pool.running import PoolConsent
    from gpuops.execute.site import Site
    from gpuops.model.workloads.lease_book import PoolFileWish
    from gpuops.plan.pool.answers import PoolAnswer
    from gpuops.plan.pool.members import ShareRequest
    from gpuops.plan.pool.reclaim import Reclaim


def pool_create(wish: PoolFileWish, site: Site, *, apply: bool) -> PoolAnswer:
    """See `running.create`."""
    return _noticed(running.create(wish, site, apply=apply), site)


def pool_lend(name: str | None, request: ShareRequest, site: Site, *, apply: bool) -> PoolAnswer:
    """See `running.lend`."""
    return _noticed(running.lend(name, request, site, apply=apply), site)


def pool_return(name: str | None, client: str, site: Site, *, apply: bool) -> PoolAnswer:
    """See `running.give_back`."""
    return _noticed(running.give_back(name, client, site, apply=apply), site)


def pool_reclaim(name: str | None, wanted: Reclaim, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """See `running.reclaim`."""
    return _noticed(running.reclaim(name, wanted, site, consent, apply=apply), site)


def pool_delete(name: str, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """See `running.delete`."""
    return _noticed(running.delete(name, site, consent, apply=apply), site)


def _noticed(answer: PoolAnswer, site: Site) -> PoolAnswer:
    """The answer, once its notice is on its way. What sending meets changes nothing of it."""
    if site.notices is not None:
        from gpuops.notify.watch import tell_pool

        tell_pool(site.notices, answer)
    return answer
