"""A machine whose clock is wrong would end the leases of others, or keep them: it changes no pool."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.api import Site, pool_lend, pool_reclaim, pool_return
from gpuops.errors import Locked, Refused
from gpuops.execute.pool.book import PoolBooks
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    LentShare,
    PoolServer,
)
from gpuops.model.workloads.lease_book import ServerGpu as Gpu
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.members import ShareRequest
from gpuops.plan.pool.reclaim import Reclaim
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


def test_a_call_that_stood_still_decides_nothing_by_what_it_read_before(lab: SimServer, tmp_path: Path) -> None:
    """A server that was off an hour ago is not dead now."""
    with Connection(target_of(lab)) as vcenter:
        vms = [each for each in vcenter.inventory().vms.values() if each.power is PowerState.OFF and not each.template]
        server = PoolServer(vms[0].name, vms[0].instance_uuid or "", (Gpu(0, 4096),))
        book = LeaseBook(LendingPool("lab", "VM Network"), (server,))
        with PoolBooks.to_write(tmp_path, "", vcenter.uuid) as books:
            books.change("lab", lambda _: book)
        hours = iter(range(100))
        slow = Site(vcenter, tmp_path, lambda: lab.world.clock.now() + next(hours) * HOUR)
        with pytest.raises(Locked, match=r"what this call read of vCenter is \d h old: nothing was changed"):
            pool_reclaim(None, Reclaim(), slow, lambda _: None, apply=True)
        with PoolBooks.to_read(tmp_path, "", vcenter.uuid) as books:
            assert books.read("lab") == book
        quick = Site(vcenter, tmp_path, lab.world.clock.now)
        assert pool_reclaim(None, Reclaim(), quick, lambda _: None, apply=True).after.servers[0].state == "dead"


@pytest.mark.parametrize("skew", [timedelta(hours=-2), timedelta(minutes=2)])
def test_a_wrong_clock_ends_nobodys_lease(lab: SimServer, tmp_path: Path, skew: timedelta) -> None:
    now = lab.world.clock.now()
    wish = LeaseWish("ml-08", "uuid-of-nobody", 1024, HOUR)
    lease = GpuLease("1", wish, HOUR, LeaseState.LENT, now, now, now + HOUR, (LentShare("gpu-01", 0, 1024),))
    book = LeaseBook(LendingPool("lab", "VM Network"), (PoolServer("gpu-01", "uuid", (Gpu(0, 4096),)),), (lease,))

    def states(site: Site) -> list[LeaseState]:
        with PoolBooks.to_read(tmp_path, "", site.vcenter.uuid) as books:
            found = books.read("lab", ended=5)
        return [each.state for each in found.leases] if found is not None else []

    def consent(_: PoolAnswer) -> None: ...

    with Connection(target_of(lab)) as vcenter:
        right = Site(vcenter, tmp_path, lab.world.clock.now, same_time=True)
        with PoolBooks.to_write(tmp_path, "", vcenter.uuid) as books:
            books.change("lab", lambda _: book)
        wrong = Site(vcenter, tmp_path, lambda: lab.world.clock.now() - skew, same_time=True)
        for deed in (
            lambda: pool_reclaim(None, Reclaim(), wrong, consent, apply=True),
            lambda: pool_lend(None, ShareRequest("ml-07", 1024, HOUR), wrong, apply=True),
            lambda: pool_return(None, "ml-07", wrong, apply=True),
        ):
            with pytest.raises(Refused, match="this machine's: when a lease ends cannot be told"):
                deed()
        assert states(right) == [LeaseState.LENT]
        assert pool_reclaim(None, Reclaim(), right, consent, apply=True).exit_code == 0
        assert states(right) == [LeaseState.LENT]
