"""kill -9 of gpuops at every guest operation of a lease's enabling and disabling: the same again ends as if nothing had
happened, and a disabling after it leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.clock import wall_clock
from gpuops.execute.pool.clients import PoolGuests
from gpuops.model.workloads.lease_book import GpuLease, LentShare
from gpuops.vsphere.connection import Connection
from tests.pool_guests import PoolWorld, loopback, pool_world

pytestmark = pytest.mark.long

STEPS = {"enable": 4, "disable": 3}
"""Scripts in guests: key, two servers, environment; two servers, environment."""


@dataclass
class Deadly:
    """A vCenter at whose N-th script the process dies: before it is sent, or once it is and before it ends."""

    vcenter: Connection
    left: int
    sent: bool

    def start_command(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.sent:
            os.kill(os.getpid(), signal.SIGKILL)
        started = self.vcenter.start_command(*args)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vcenter, name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PoolWorld]:
    with pool_world(tmp_path) as found:
        for each in ("gpu-01", "gpu-02"):
            found.pool().start_server(found.pool_server(each))
        yield found


def _die(world: PoolWorld, lease: GpuLease, doing: str, step: int, sent: bool) -> int:
    """The exit code of a process that did that with the lease, and was killed at that step."""
    book, inventory, target = world.book(), world.inventory(), world.connection.target

    def run() -> None:
        with Connection(target) as connection:
            pool = PoolGuests.of(book, loopback(), inventory, Deadly(connection, step, sent))
            if doing == "enable":
                pool.enable(lease, wall_clock())
            else:
                pool.disable(lease)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_a_lease_is_whole_or_gone_after_a_kill_at_any_step(world: PoolWorld, sent: bool) -> None:
    shares = LentShare("gpu-01", 0, 500), LentShare("gpu-02", 1, 600)
    for step in range(1, STEPS["enable"] + 1):
        lease = world.lease("ds-01", *shares, id=f"lease-{step}")
        assert _die(world, lease, "enable", step, sent) == -signal.SIGKILL
        world.pool().enable(lease, wall_clock())
        assert world.use("ds-01", "ALLOC 500", "ALLOC 1")[2:] == ["0 OK 500", "1 OK 500", "0 NO memory", "1 OK 501"]
        ports = [each for name in ("gpu-01", "gpu-02") for each in world.kept(name) if "/port-" in each]
        assert [Path(each).name for each in ports] == ["port-21000", "port-21000"], "one for each share, none lost"
        assert _die(world, lease, "disable", min(step, STEPS["disable"]), sent) == -signal.SIGKILL
        assert world.pool().disable(lease) == ()
        world.until_quiet()
        assert [world.kept(name) for name in world.guests] == [[], [], [], []]


def test_a_lease_that_was_half_enabled_is_taken_back_whole(world: PoolWorld) -> None:
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 500), LentShare("gpu-02", 1, 600))
    for step in range(1, STEPS["enable"] + 1):
        lease = replace(lease, id=f"lease-{step}")
        assert _die(world, lease, "enable", step, True) == -signal.SIGKILL
        world.until_quiet()
        assert world.pool().disable(lease) == ()
        assert [world.kept(name) for name in world.guests] == [[], [], [], []]
