"""Servers of a pool: which VM may be one, whose shares they keep, and when they count as lending."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuops.extras.lending import lending
from gpuops.extras.lending.lease_book import (
    LeaseBook,
    LeaseWish,
    LendingPool,
    PoolFile,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.extras.lending.members import Reclaim, in_another_pool, is_lending, servers_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, PowerState, Vm
from tests.plan.moving.worlds import world
from tests.plan.pool.test_books import BEGIN, GIB
from tests.plan.snapshots import catalog

SERVER = PoolServer("ml-03", "uuid-a", (ServerGpu(0, 40 * GIB),))
L40S, UNKNOWN = (0x10DE, 0x26B9), (0x10DE, 0xFFFF)


def lent(*servers: PoolServer) -> LeaseBook:
    """A book of these servers, or of `SERVER`, whose first has lent a share to a client that is set up."""
    wish = LeaseWish("ds", "uuid-ds", 8 * GIB, timedelta(hours=1))
    book, _ = lending.lend(LeaseBook(LendingPool("lab", "net"), servers or (SERVER,)), wish, "a1", BEGIN)
    return lending.hooks_ended(book, "a1", True, BEGIN)


def test_shares_never_move_to_another_vm_that_has_the_name_of_their_server() -> None:
    book = lent()
    after, [refused] = lending.with_servers(book, (replace(SERVER, uuid="uuid-b"),), BEGIN)
    assert (refused.subject, after.servers) == ("ml-03", book.servers)


def test_two_servers_that_swap_their_names_keep_those_that_they_have_in_the_pool() -> None:
    other_server = PoolServer("ml-04", "uuid-b", (ServerGpu(0, 24 * GIB),))
    book = lent(SERVER, other_server)
    swapped = (replace(SERVER, name="ml-04"), replace(other_server, name="ml-03"))
    assert lending.with_servers(book, swapped, BEGIN) == (book, ())


def test_a_new_server_has_no_name_of_another_one() -> None:
    book = lent()
    renamed, new = replace(SERVER, name="ml-05"), replace(SERVER, uuid="uuid-b")
    after, [refused] = lending.with_servers(book, (renamed, new), BEGIN)
    assert (refused.rule, after) == ("is named twice, or has the name of another server", book)


def test_a_dead_server_lends_as_long_as_a_client_may_still_use_it() -> None:
    book = lending.server_died(lent(), SERVER, BEGIN, "cannot serve: no driver")
    assert is_lending(book.servers[0], book)
    book = lending.hooks_ended(book, "a1", False, BEGIN)
    assert not is_lending(book.servers[0], book)


def test_a_server_of_another_pool_is_refused_when_it_comes() -> None:
    book, other_pool = lent(), LeaseBook(LendingPool("other", "net"), (SERVER,))
    assert list(in_another_pool(book, lending.settle(book, BEGIN), [other_pool])) == [], "it goes on where it lends"
    [refused] = in_another_pool(None, other_pool, [book])
    assert refused.rule == "is already a server of pool lab"


@pytest.mark.parametrize("because", ["", "cannot serve: no driver"])
def test_a_report_that_a_server_is_dead_is_recorded_of_one_that_is_dead_already(because: str) -> None:
    book = lending.server_died(lent(), SERVER, BEGIN, because)
    assert not book.servers[0].is_reported_dead
    inventory: Inventory = world([[8]], [[8]]).with_vm(Vm("vm-1", "ml-03", instance_uuid="uuid-a", power=PowerState.ON))
    book, _ = Reclaim("ml-03", dead=True).decide(book, inventory, BEGIN)
    assert book.servers[0].is_reported_dead
    assert lending.server_died(book, book.servers[0], BEGIN) == book, "a reading of vCenter takes no report back"
    assert Reclaim("ml-03", again=True).decide(book, inventory, BEGIN)[0].servers[0] == SERVER


@pytest.mark.parametrize(("allowed", "is_server"), [((L40S,), True), ((L40S, UNKNOWN), False), ((), False)])
def test_a_dynamic_device_that_may_be_an_unknown_board_is_not_lent(
    allowed: tuple[tuple[int, int], ...], is_server: bool
) -> None:
    vm = Vm("vm-1", "ml-04", instance_uuid="uuid-1", power=PowerState.ON, devices=(DynamicDevice(1, allowed, "ml"),))
    inventory: Inventory = world([[8]], [[8]]).with_vm(vm)
    wish = PoolFile(name="lab", network="net", version=1, servers=("ml-04",))
    servers, refused = servers_of(wish, inventory, catalog())
    assert bool(refused) is not is_server
    assert all(server.state is ServerState.SERVING for server in servers)
