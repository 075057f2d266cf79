"""A pool is deleted once nobody has, waits for or is still to be cut off from anything of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.lease_book import (
    LeaseBook,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.plan.pool import lending
from gpuops.plan.pool.deleting import may_go, to_delete, without_servers
from gpuops.plan.pool.members import left_behind

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SERVER = PoolServer("gpu-01", "uuid-1", (ServerGpu(0, 100),))
OTHER = PoolServer("gpu-02", "uuid-2", (ServerGpu(0, 40),), state=ServerState.DEAD)
BOOK = LeaseBook(LendingPool("lab", "net"), (SERVER, OTHER))


def lent(book: LeaseBook = BOOK, client: str = "vm-1", id: str = "a1") -> LeaseBook:
    return lending.lend(book, LeaseWish(client, f"uuid-of-{client}", 100, HOUR), id, NOW).book


def set_up(book: LeaseBook) -> LeaseBook:
    return lending.enabled(lending.enabling(book, "a1"), "a1")


NOT_CUT_OFF = (
    "vm-1: is not cut off from the lease a1 of pool lab yet (next: gpuops pool reclaim --pool lab --due does it)",
)


@pytest.mark.parametrize(
    ("book", "at", "lines"),
    [
        (
            lent(),
            NOW,
            (
                (
                    "vm-1: has the lease a1 of pool lab until 2026-11-28 13:00Z (next: GIVE vm-1 gives it back, "
                    "gpuops pool reclaim --pool lab --server gpu-01 --grace 15m takes its server back)"
                ),
            ),
        ),
        (
            lending.take_back(lent(lent(), "vm-2", "b1"), "gpu-01", 0.5 * HOUR, NOW),
            NOW,
            (
                (
                    "vm-1: has the lease a1 of pool lab, which ends at 2026-11-28 12:30Z (next: wait, or GIVE "
                    "vm-1 gives it back)"
                ),
                "vm-1: waits for the lease a1-2 of pool lab (next: GIVE vm-1 ends that)",
                "vm-2: waits for the lease b1 of pool lab (next: GIVE vm-2 ends that)",
            ),
        ),
        (set_up(lent()), NOW + 2 * HOUR, NOT_CUT_OFF),
        (
            lending.give_up(lending.server_died(set_up(lent()), "gpu-01", NOW), "uuid-of-vm-1", NOW),
            NOW,
            NOT_CUT_OFF,
        ),
    ],
    ids=["lent", "ending and waiting", "its time is over", "broken"],
)
def test_each_lease_that_is_not_over_keeps_the_pool_with_its_next_move(
    book: LeaseBook, at: datetime, lines: tuple[str, ...]
) -> None:
    after, rejections = without_servers(book, at)
    told = tuple(each.line.replace("gpuops pool return --pool lab --client", "GIVE") for each in rejections)
    assert (after, told) == (book, lines)
    assert not to_delete(book)


@pytest.mark.parametrize(
    "book",
    [
        BOOK,
        lending.give_up(lent(), "uuid-of-vm-1", NOW),
        lending.cut_off(lending.give_up(set_up(lent()), "uuid-of-vm-1", NOW), "a1", NOW),
        lending.settle(lent(), NOW + 2 * HOUR),
    ],
    ids=["never lent", "returned", "cut off", "its time is over"],
)
def test_once_they_are_over_all_servers_leave_and_the_pool_goes_with_the_last(book: LeaseBook) -> None:
    after, rejections = without_servers(book, NOW + 2 * HOUR)
    assert rejections == () and not to_delete(book)
    assert [(each.name, each.state, each.night) for each in after.servers] == [
        ("gpu-01", ServerState.LEAVING, None),
        ("gpu-02", ServerState.LEAVING, None),
    ]
    assert to_delete(after) and not may_go(after)
    assert without_servers(after, NOW + 2 * HOUR) == (after, ()), "the same again goes on"
    one_left = lending.without(after, {"uuid-1"})
    assert to_delete(one_left) and not may_go(one_left)
    assert may_go(lending.without(after, {"uuid-1", "uuid-2"}))


def test_nobody_is_lent_anything_of_a_pool_that_is_being_deleted_and_its_file_makes_it_again() -> None:
    after, _ = without_servers(BOOK, NOW)
    refused = lending.lend(after, LeaseWish("vm-3", "uuid-3", 1, HOUR), "c1", NOW)
    assert refused.lease is None and refused.rejections
    again, _ = lending.with_servers(after, (SERVER,), NOW)
    assert not to_delete(again) and not may_go(lending.without(again, {"uuid-1", "uuid-2"}))
    assert lent(again).lease("a1") is not None


def runs(vm: Vm) -> Vm:
    return vm


@pytest.mark.parametrize(
    ("change", "program", "told"),
    [
        (runs, "lupine", ""),
        (lambda vm: replace(vm, power=PowerState.OFF), "lupine", ""),
        (lambda vm: replace(vm, power=PowerState.SUSPENDED), None, ""),
        (lambda vm: replace(vm, power=PowerState.SUSPENDED), "lupine", "(suspended): its program is not stopped"),
        (lambda vm: replace(vm, power=None), "lupine", "(power unknown): its program is not stopped"),
        (None, None, "If it is there: clear its custom attribute gpuops.pool"),
        (None, "lupine", "clear its custom attribute gpuops.pool and stop the program in its guest"),
    ],
)
def test_of_a_server_that_leaves_and_cannot_be_seen_to_it_is_told(
    change: Callable[[Vm], Vm] | None, program: str | None, told: str
) -> None:
    seen = Inventory("vc", "8.0.3.0", NOW)
    if change is not None:
        seen = seen.with_vm(change(Vm("vm-1", "gpu-01", instance_uuid="uuid-1", power=PowerState.ON)))
    book = replace(BOOK, pool=replace(BOOK.pool, program=program), servers=(SERVER,))
    assert list(left_behind(book, seen)) == [], "it does not leave"
    found = list(left_behind(without_servers(book, NOW)[0], seen))
    assert len(found) == bool(told) and all(each.endswith(told) for each in found), found
