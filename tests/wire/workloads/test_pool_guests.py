"""Shares that a program really enforces, in simulated guests that run real programs: lent, limited, cut off."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.clock import wall_clock
from gpuops.errors import Locked, Refused, StepFailed
from gpuops.execute.pool import guest_calls
from gpuops.execute.pool.clients import PoolGuests
from gpuops.model.workloads.lease_book import LentShare, ServerState
from gpuops.model.workloads.remote_gpu import CutOff, MeasuredShare, ServerCondition
from tests.pool_guests import CLIENTS, SERVERS, PoolWorld, loopback, pool_world

pytestmark = pytest.mark.long


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PoolWorld]:
    with pool_world(tmp_path) as found:
        yield found


def test_a_lease_lets_a_client_in_limits_it_and_cuts_it_off(world: PoolWorld) -> None:
    pool, server = world.pool(), world.pool_server("gpu-01")
    pool.start_server(server)
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 1000))
    pool.enable(lease, wall_clock())
    assert world.use("ds-01", "ALLOC 900", "ALLOC 200", "FREE 100", "ALLOC 200") == [
        "0 OK", "0 OK 900", "0 NO memory", "0 OK 800", "0 OK 1000",
    ]  # fmt: skip
    held = world.hold("ds-01", 700)
    until = time.monotonic() + 60
    while pool.health(server).measured != (MeasuredShare(lease.id, 0, 700),):
        assert time.monotonic() < until
    assert pool.disable(lease) == ()
    assert held.end() == "0 cut off"
    assert world.kept("gpu-01") == world.kept("ds-01") == []


def test_a_lease_ends_by_itself_where_nobody_comes_to_end_it(world: PoolWorld) -> None:
    pool, server = world.pool(), world.pool_server("gpu-01")
    pool.start_server(server)
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 1000), lasts_s=12)
    pool.enable(replace(lease, lasts=timedelta(hours=1)), wall_clock())  # most of it is over
    assert world.use("ds-01", "PING", "hold") == ["0 OK", "0 OK 0", "0 cut off"]
    assert world.use("ds-01", "PING")[0].startswith("not reached")


def test_one_client_has_gpus_of_two_servers_and_two_clients_share_a_gpu(world: PoolWorld) -> None:
    pool = world.pool()
    for each in SERVERS:
        pool.start_server(world.pool_server(each))
    both = world.lease("ds-01", LentShare("gpu-01", 1, 1000), LentShare("gpu-02", 0, 2000))
    other = world.lease("ds-02", LentShare("gpu-01", 1, 300), id="lease-2")
    for lease in (both, other):
        pool.enable(lease, wall_clock())
    assert world.use("ds-01", "ALLOC 1000", "ALLOC 1000") == [
        "0 OK", "1 OK", "0 OK 1000", "1 OK 1000", "0 NO memory", "1 OK 2000",
    ]  # fmt: skip
    assert world.use("ds-02", "ALLOC 301", "ALLOC 300") == ["0 OK", "0 NO memory", "0 OK 300"]
    pool.disable(both)
    assert world.use("ds-02", "PING") == ["0 OK", "0 OK 0"], "it keeps its own"
    ports = [each for each in world.kept("gpu-01") if "/port-" in each]
    assert len(ports) == 1


def test_no_client_is_let_in_with_anothers_key_or_from_anothers_address(world: PoolWorld) -> None:
    pool = world.pool()
    pool.start_server(world.pool_server("gpu-01"))
    leases = [world.lease(name, LentShare("gpu-01", 0, 100), id=f"lease-{name}") for name in CLIENTS]
    for each in leases:
        pool.enable(each, wall_clock())
    first, second = (
        world.root(name) / f"root/.gpuops-pool/{lease.id}" for name, lease in zip(CLIENTS, leases, strict=True)
    )
    own = (second / "env").read_text()
    (second / "env").write_text((first / "env").read_text().replace(leases[0].id, leases[1].id))
    assert world.use("ds-02", "PING") == ["0 cut off", "0 cut off"], "its address is not that of the lease"
    (second / "env").write_text(own)
    (second / "key").write_text("0" * 64)
    assert world.use("ds-02", "PING") == ["0 NO key", "0 NO key"]


def test_keys_are_in_the_clients_guest_alone_and_no_name_of_anybody_is_in_a_clients(
    world: PoolWorld, caplog: pytest.LogCaptureFixture
) -> None:
    pool = world.pool()
    pool.start_server(world.pool_server("gpu-01"))
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100))
    pool.enable(lease, wall_clock())
    home = world.root("ds-01") / "root/.gpuops-pool"
    key = (home / lease.id / "key").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", key)
    assert (home / lease.id / "key").stat().st_mode & 0o077 == 0
    told = "".join(each.read_text() for each in home.rglob("*") if each.is_file())
    assert not [name for name in (*SERVERS, "ds-02") if name in told]
    theirs = [each.read_text() for each in world.root("gpu-01").rglob("*") if each.is_file()]
    assert not [each for each in theirs if key in each or "ds-01" in each]
    assert key not in caplog.text
    arguments = " ".join(each.cmdLine for name in (*SERVERS, *CLIENTS) for each in _processes(world, name))
    assert arguments and key not in arguments, "what a process was started with is told to whoever lists processes"


def test_enabling_and_disabling_twice_changes_nothing_more(world: PoolWorld) -> None:
    pool, server = world.pool(), world.pool_server("gpu-01")
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100))
    for _ in range(2):
        pool.start_server(server)
        pool.enable(lease, wall_clock())
    kept = world.kept("gpu-01"), world.kept("ds-01")
    key = (world.root("ds-01") / "root/.gpuops-pool" / lease.id / "key").read_text()
    pool.enable(lease, wall_clock())
    assert (world.kept("gpu-01"), world.kept("ds-01")) == kept
    assert (world.root("ds-01") / "root/.gpuops-pool" / lease.id / "key").read_text() == key
    for _ in range(2):
        assert pool.disable(lease) == ()
        assert world.kept("gpu-01") == world.kept("ds-01") == []


def test_a_server_whose_check_does_not_end_is_not_called_dead(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that is busy breaks nobody's lease."""
    monkeypatch.setattr(guest_calls, "SCRIPT_S", 1.0)
    pool, server = world.pool(), world.pool_server("gpu-01")
    slow = replace(pool.program, server=replace(pool.program.server, check="sleep 20"))
    found = world.pool(slow).health(server)
    assert found.condition is ServerCondition.UNKNOWN, found
    refuses = replace(pool.program, server=replace(pool.program.server, check="echo no GPU; exit 1"))
    dead = world.pool(refuses).health(server)
    assert dead.condition is ServerCondition.DEAD and dead.why.endswith("no GPU")


def test_a_client_that_is_off_keeps_a_lease_that_only_its_own_guest_can_end(world: PoolWorld) -> None:
    pool = world.pool()
    pool.start_server(world.pool_server("gpu-01"))
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100))
    pool.enable(lease, wall_clock())
    guest = world.guests["ds-01"]
    guest.wait(guest.vm.PowerOffVM_Task())
    with pytest.raises(Refused, match="ds-01 does not run"):
        world.pool(replace(loopback(), cut_off=CutOff.CLIENT)).disable(lease)
    [told] = world.pool().disable(lease)
    assert told.startswith("ds-01: its environment may stay: ds-01 does not run")
    assert world.kept("gpu-01") == []


def test_a_lease_of_which_one_server_cannot_be_asked_is_not_cut_off_yet_but_is_at_the_other(world: PoolWorld) -> None:
    pool = world.pool()
    for each in SERVERS:
        pool.start_server(world.pool_server(each))
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100), LentShare("gpu-02", 0, 100))
    pool.enable(lease, wall_clock())
    guest = world.guests["gpu-01"]
    guest.wait(guest.vm.SuspendVM_Task())
    with pytest.raises(Refused, match="gpu-01 does not run"):
        world.pool().disable(lease)
    assert world.kept("gpu-01") and world.kept("gpu-02") == world.kept("ds-01") == []
    guest.wait(guest.vm.PowerOnVM_Task(None))
    assert world.pool().disable(lease) == ()
    assert world.kept("gpu-01") == []


def test_whoever_is_alone_no_more_runs_nothing_in_a_guest(world: PoolWorld) -> None:
    def lost() -> None:
        raise Locked("another machine may work in the guests")

    pool = PoolGuests.of(world.book(), loopback(), world.inventory(), world.connection, lost)
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100))
    for deed in (
        lambda: pool.start_server(world.pool_server("gpu-01")),
        lambda: pool.enable(lease, wall_clock()),
        lambda: pool.disable(lease),
    ):
        with pytest.raises(Locked):
            deed()
    assert not any(each.method == "StartProgramInGuest" for each in world.server.world.ledger)


def test_a_dead_server_is_told_and_one_that_cannot_be_asked_is_not_called_dead(world: PoolWorld) -> None:
    pool, server = world.pool(), world.pool_server("gpu-01")
    pool.start_server(server)
    assert pool.health(server).condition is ServerCondition.SERVES
    pool.stop_server(server)
    assert pool.health(server).condition is ServerCondition.DEAD
    unseen = replace(server, uuid="0" * 8)
    assert pool.health(unseen).condition is ServerCondition.UNKNOWN, "it may be hidden from this login"
    with pytest.raises(Refused, match="or this login may not see it"):
        pool.servers.dismiss(unseen, "lease-1", 0)
    pool.servers.dismiss(replace(unseen, state=ServerState.DEAD), "lease-1", 0)
    network = replace(pool.book.pool, network="Storage")
    elsewhere = replace(pool.servers.vms, network=network.network)
    found = replace(pool.servers, vms=elsewhere).health(server)
    assert found.condition is ServerCondition.UNKNOWN and "no address in the network Storage" in found.why
    guest = world.guests["gpu-01"]
    guest.wait(guest.vm.PowerOffVM_Task())
    assert world.pool().health(server).condition is ServerCondition.DEAD
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100))
    assert world.pool().disable(lease) == (), "a server that is off serves nobody"


def test_what_cannot_be_lent_is_refused_with_the_next_move(world: PoolWorld) -> None:
    pool, now = world.pool(), wall_clock()
    lease = world.lease("ds-01", LentShare("gpu-01", 0, 100), LentShare("gpu-02", 0, 100))
    with pytest.raises(Refused, match="its lease is over"):
        pool.enable(replace(lease, ends_at=now), now)
    with pytest.raises(Refused, match="lends 1 GPU to a client, not 2"):
        world.pool(replace(loopback(), most_shares=1)).enable(lease, now)
    with pytest.raises(Refused, match="gpu-09 is no server"):
        pool.enable(replace(lease, shares=(LentShare("gpu-09", 0, 1),)), now)
    with pytest.raises(StepFailed, match="gpu-01: it ended with exit code 1"):
        pool.enable(lease, now)  # no server was started: its program opens nothing
    assert pool.disable(lease) == ()
    assert world.kept("ds-01") == world.kept("gpu-01") == []


def _processes(world: PoolWorld, name: str) -> list[Any]:
    guest = world.guests[name]
    return list(guest.processes.ListProcessesInGuest(guest.vm, guest.auth, []))
