"""Servers are marked in vCenter while they lend: by every book, and never over another pool's mark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuops.advise.lending_servers import POOL_MARK, lends
from gpuops.execute.pool.marks import mark_servers, unmark_servers
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    LentShare,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.plan.pool.members import as_the_fleet_is
from gpuops.sim.server import SimServer, start
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

NOW = datetime(2026, 11, 27, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start("lab", clock="stepped") as found:
        yield found


@pytest.fixture
def connection(server: SimServer) -> Iterator[Connection]:
    with Connection(target_of(server)) as found:
        yield found


def book(inventory: Inventory, state: ServerState, *, holds: bool = False, name: str = "lab") -> LeaseBook:
    """A pool with one server, the first VM by name; with a lease of it."""
    vm = min(inventory.vms.values(), key=lambda each: each.name)
    assert vm.instance_uuid is not None
    server = PoolServer(vm.name, vm.instance_uuid, (ServerGpu(0, 100),), state=state)
    wish = LeaseWish("ds-01", "uuid", 50, timedelta(hours=1))
    lease = GpuLease("1", wish, wish.lasts, LeaseState.ENDING, NOW, NOW, NOW, (LentShare(vm.name, 0, 50),))
    return LeaseBook(LendingPool(name, "VM Network"), (server,), (lease,) if holds else ())


def marked(inventory: Inventory) -> list[str]:
    return [vm.attributes[POOL_MARK] for vm in inventory.vms.values() if lends(vm)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "holds", "mark"),
    [
        (ServerState.SERVING, False, ["lab"]),
        (ServerState.DRAINING, True, ["lab"]),
        (ServerState.DRAINING, False, []),
        (ServerState.DEAD, True, []),
    ],
)
def test_a_server_is_marked_while_it_lends(
    connection: Connection, state: ServerState, holds: bool, mark: list[str]
) -> None:
    before = book(connection.inventory(), ServerState.SERVING)
    assert mark_servers(before, connection.inventory(), connection) == {}
    assert unmark_servers(before, None, connection.inventory(), connection) == {}
    assert marked(connection.inventory()) == ["lab"]
    after = book(connection.inventory(), state, holds=holds)
    for _ in range(2):
        assert mark_servers(after, connection.inventory(), connection) == {}
        assert unmark_servers(after, before, connection.inventory(), connection) == {}
        assert marked(connection.inventory()) == mark


@pytest.mark.parametrize("power", list(PowerState))
def test_a_server_that_does_not_run_is_dead(connection: Connection, power: PowerState) -> None:
    inventory = connection.inventory()
    lab = book(inventory, ServerState.SERVING)
    [vm] = inventory.vms_with_uuid(lab.servers[0].uuid)
    found = as_the_fleet_is(lab, inventory.with_vm(replace(vm, power=power)), NOW)
    assert (found.servers[0].state is ServerState.SERVING) is (power is PowerState.ON)


@pytest.mark.long
def test_a_server_that_left_its_pool_loses_its_mark_and_another_pools_mark_is_left(connection: Connection) -> None:
    lab = book(connection.inventory(), ServerState.SERVING)
    mark_servers(lab, connection.inventory(), connection)
    unmark_servers(replace(lab, servers=()), lab, connection.inventory(), connection)
    assert marked(connection.inventory()) == []
    other = book(connection.inventory(), ServerState.SERVING, name="other")
    mark_servers(other, connection.inventory(), connection)
    unmark_servers(replace(lab, servers=()), lab, connection.inventory(), connection)
    assert marked(connection.inventory()) == ["other"]


@pytest.mark.long
def test_what_cannot_be_marked_is_told_and_ends_nothing(connection: Connection, server: SimServer) -> None:
    lab = book(connection.inventory(), ServerState.SERVING)
    role = server.world.authority.add_role("no-marks", {"Global.ManageCustomFields"})
    server.world.authority.permit(server.username, role)
    [told] = mark_servers(lab, connection.inventory(), connection).values()
    assert told.startswith(f"{lab.servers[0].name}: its mark gpuops.pool is not as it should be (")
    assert "do not see that it lends" in told and "Global.SetCustomField" in told
    assert marked(connection.inventory()) == []
