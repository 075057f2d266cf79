"""Servers of pools by night: when they lend, until when, and that no lease is longer than the night lets it be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.config.policy import parse_policy
from gpuops.errors import PolicyError
from gpuops.model.lent_by_night import ByNight, LentByNight, ServerNight
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.lease_book import (
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.plan.pool import lending
from gpuops.plan.pool.by_night import (
    LendsAgain,
    NightsNow,
    StartedServer,
    bounded,
    last_end,
    lend_now,
    lending_again,
    lends_by_night,
    night_drains,
    not_there,
    return_takes_back,
    standing,
)

NOW = datetime(2026, 11, 27, 22, tzinfo=UTC)
UNTIL = NOW + timedelta(hours=7)
NIGHT = ServerNight("2026-11-27", ByNight.GIVE, UNTIL)
DAY = PoolServer("gpu-01", "uuid-1", (ServerGpu(0, 100),))
BY_NIGHT = PoolServer("gpu-02", "uuid-2", (ServerGpu(0, 100), ServerGpu(1, 60)), state=ServerState.DEAD)


def book() -> LeaseBook:
    """A server that lends, and one that a night has lend until 05:00."""
    there = LeaseBook(LendingPool("lab", "VM Network"), (DAY, BY_NIGHT))
    return lending_again(there, [LendsAgain("gpu-02", NIGHT)], NOW)


def wish(number: int, memory_mib: int, hours: float, gpus: int = 1) -> LeaseWish:
    return LeaseWish(f"ds-{number:02}", f"uuid-ds-{number}", memory_mib, timedelta(hours=hours), gpus)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 24), st.integers(1, 3)), min_size=1, max_size=8), st.data()
)
def test_no_lease_of_a_server_of_a_night_is_longer_than_the_night(
    wishes: list[tuple[int, float, int]], data: st.DataObject
) -> None:
    there, now = book(), NOW
    for number, (memory_mib, hours, gpus) in enumerate(wishes):
        there = lending.lend(there, wish(number, memory_mib, hours, gpus), f"l{number}", now).book
        now += timedelta(minutes=data.draw(st.integers(0, 90)))
        for each in lending.to_disable(lending.settle(there, now), now):
            there = lending.cut_off(there, each.id, now)
    for lease in there.leases:
        if any(share.server == "gpu-02" for share in lease.shares):
            assert lease.ends_at is not None and lease.ends_at <= UNTIL
    after = lending.settle(there, max(now, UNTIL))
    by_night = after.server("gpu-02")
    assert by_night is not None and by_night.state is ServerState.DRAINING
    assert not [each for each in lending.to_enable(after) if any(share.server == "gpu-02" for share in each.shares)]


def test_what_is_longer_than_the_night_is_lent_by_day_servers_or_waits_for_them() -> None:
    first = lending.lend(book(), wish(1, 100, 8), "a", NOW)
    assert first.lease is not None and [share.server for share in first.lease.shares] == ["gpu-01"]
    second = lending.lend(first.book, wish(2, 100, 8), "b", NOW)
    assert second.lease is not None and second.lease.state is LeaseState.WAITING
    assert second.lease.begins_at == NOW + timedelta(hours=8), "it waits for the server that lends by day"
    third = lending.lend(second.book, wish(3, 100, 6), "c", NOW)
    assert third.lease is not None and [share.server for share in third.lease.shares] == ["gpu-02"]


def test_a_night_waits_for_the_last_lease_of_the_servers_that_it_takes_and_of_no_other() -> None:
    day, night, both = {"uuid-1"}, {"uuid-2"}, {"uuid-1", "uuid-2"}
    assert last_end(book(), both) is None, "nobody has anything of them"
    lent = lending.lend(book(), wish(1, 40, 8), "a", NOW).book
    lent = lending.lend(lent, wish(2, 100, 3), "b", NOW).book
    lent = lending.lend(lent, wish(3, 60, 5), "c", NOW).book
    held = {each.id: [share.server for share in each.shares] for each in lent.leases if each.holds}
    assert held == {"a": ["gpu-01"], "b": ["gpu-02"], "c": ["gpu-01"]}
    ends = {"day": last_end(lent, day), "night": last_end(lent, night), "both": last_end(lent, both)}
    hours = {name: end - NOW for name, end in ends.items() if end is not None}
    assert hours == {"day": timedelta(hours=8), "night": timedelta(hours=3), "both": timedelta(hours=8)}
    assert last_end(lent, {"uuid-of-another"}) is None
    ended = lending.give_up(lent, "uuid-ds-1", NOW)
    assert last_end(ended, day) == NOW + timedelta(hours=5)
    waits = lending.lend(lent, wish(4, 100, 2), "d", NOW)
    assert waits.lease is not None and waits.lease.state is LeaseState.WAITING
    assert last_end(waits.book, night) == NOW + timedelta(hours=3), "who waits has nothing of it yet"


def test_a_client_that_is_not_cut_off_keeps_its_server_however_long_ago_its_lease_ended() -> None:
    lent = lending.lend(book(), wish(1, 100, 1), "a", NOW).book
    lent = lending.settle(lending.enabled(lending.enabling(lent, "a"), "a"), UNTIL)
    assert last_end(lent, {"uuid-1"}) == NOW + timedelta(hours=1)
    assert last_end(lending.cut_off(lent, "a", UNTIL), {"uuid-1"}) is None


def test_an_early_return_takes_back_at_once_what_the_night_has_lend_and_no_more() -> None:
    lent = lending.lend(book(), wish(1, 100, 6), "a", NOW).book
    lent = lending.lend(lent, wish(2, 100, 6), "b", NOW).book
    hour_later = NOW + timedelta(hours=1)
    after = return_takes_back(lent, hour_later)
    ends = {each.id: (each.state, each.ends_at) for each in after.leases if each.state is not LeaseState.WAITING}
    by_night = next(each.id for each in lent.leases if each.shares[0].server == "gpu-02")
    assert ends[by_night][1] in (hour_later, None) and len(ends) == 2
    assert sorted(end for _, end in ends.values() if end is not None)[-1] == NOW + timedelta(hours=6)
    assert return_takes_back(after, hour_later) == after
    assert list(standing(after)) == []


def test_a_server_that_somebody_has_lend_again_by_night_lends_no_longer_than_the_night() -> None:
    drained = lending.take_back(book(), "gpu-02", timedelta(), NOW, NIGHT)
    again = lending.serve_again(drained, "gpu-02", NOW).server("gpu-02")
    assert again is not None and again.night == NIGHT
    by_hand = lending.take_back(book(), "gpu-02", timedelta(), NOW)
    again = lending.serve_again(by_hand, "gpu-02", NOW).server("gpu-02")
    assert again is not None and again.night is None


def test_a_server_lends_by_day_again_once_its_night_is_over_and_once_a_night_by_night() -> None:
    back = replace(NIGHT, by_night=ByNight.TAKE_BACK)
    server = replace(DAY, state=ServerState.DEAD, night=back, uuid="uuid-1")
    there = LeaseBook(LendingPool("lab", "VM Network"), (server,))
    runs = Inventory(
        "vc", "8.0.3.0", NOW, vms={"vm-1": Vm("vm-1", "gpu-01", instance_uuid="uuid-1", power=PowerState.ON)}
    )
    off = runs.with_vm(replace(runs.vms["vm-1"], power=PowerState.OFF))
    marked = runs.with_vm(replace(runs.vms["vm-1"], attributes={back.marker: "night"}))
    over, open_night = NightsNow(over={back.night}), NightsNow()
    by_day = (LendsAgain("gpu-01", None),)
    assert lend_now(there, over, runs, NOW) == by_day == lend_now(there, open_night, runs, UNTIL)
    for nights, seen in ((open_night, runs), (over, off), (over, marked)):
        assert lend_now(there, nights, seen, NOW) == ()
    given_to = LeaseBook(there.pool, (replace(server, night=None),))
    started = NightsNow((StartedServer("uuid-1", NIGHT),))
    assert lend_now(given_to, started, runs, NOW) == (LendsAgain("gpu-01", NIGHT),)
    for state, night, now in (
        (ServerState.DEAD, None, UNTIL),
        (ServerState.DEAD, NIGHT, NOW),
        (ServerState.DRAINING, None, NOW),
        (ServerState.SERVING, None, NOW),
    ):
        there = LeaseBook(there.pool, (replace(server, state=state, night=night),))
        assert lend_now(there, started, runs, now) == (), (state, night, now)


def test_a_server_that_came_into_the_pool_by_night_lends_no_longer_than_the_night_that_has_started_it() -> None:
    there = LeaseBook(LendingPool("lab", "VM Network"), (replace(BY_NIGHT, state=ServerState.SERVING),))
    lent = lending.lend(there, wish(1, 60, 12), "a", NOW).book
    lent = lending.enabled(lending.enabling(lent, "a"), "a")
    assert not lends_by_night(lent) and bounded(lent, NightsNow()) == lent
    after = bounded(lent, NightsNow((StartedServer("uuid-2", NIGHT),)))
    assert lends_by_night(after) and bounded(after, NightsNow((StartedServer("uuid-2", NIGHT),))) == after
    longer = lending.lend(after, wish(2, 10, 8), "b", NOW)
    assert longer.lease is not None and longer.lease.state is LeaseState.WAITING
    ended = lending.settle(longer.book, UNTIL)
    assert {each.id: each.ends_at for each in ended.leases if each.holds} == {"a": UNTIL}
    for each in lending.to_disable(ended, UNTIL):
        ended = lending.cut_off(ended, each.id, UNTIL)
    assert not lends_by_night(ended)


def test_a_night_leaves_a_server_alone_that_somebody_drains() -> None:
    policy = parse_policy(POLICY.replace("LENDING", "[{pool: lab, by_night: take-back}]"), "p.yaml")
    lent = lending.lend(LeaseBook(LendingPool("lab", "VM Network"), (DAY,)), wish(1, 60, 12), "a", NOW).book
    by_hand = lending.take_back(lent, "gpu-01", timedelta(hours=2), NOW)
    assert night_drains(by_hand, {"uuid-1"}, policy, "night", NOW) == by_hand
    drained = night_drains(lent, {"uuid-1"}, policy, "night", NOW)
    assert [server.night.night for server in drained.servers if server.night is not None] == ["night"]
    assert night_drains(drained, {"uuid-1"}, policy, "night", NOW) == drained


POLICY = """
version: 1
name: night
windows: any
pools: [{name: a, parked: true, owner: none, select: {name: x}, idle: {cpu_below_mhz: 1}}]
lending: LENDING
"""


def test_a_policy_says_one_thing_of_each_pool() -> None:
    read = parse_policy(POLICY.replace("LENDING", "[{pool: lab, by_night: give}]"), "p.yaml")
    assert read.lending == (LentByNight("lab", ByNight.GIVE),)
    twice = "[{pool: lab, by_night: give}, {pool: lab, by_night: take-back, grace: 1h}]"
    for text, why in (
        (twice, "the pool of lent GPUs 'lab' is there twice"),
        ("[{pool: lab, by_night: never}]", "lending.0.by_night"),
        ("[{pool: lab, by_night: give, grace: soon}]", "lending.0.grace"),
    ):
        with pytest.raises(PolicyError, match=why):
            parse_policy(POLICY.replace("LENDING", text), "p.yaml")


def test_a_night_names_the_pools_of_its_policy_that_are_not_there() -> None:
    both = "[{pool: lab, by_night: give}, {pool: other, by_night: take-back}]"
    policy = parse_policy(POLICY.replace("LENDING", both), "p.yaml")
    assert list(not_there(policy, ("lab", "other", "more"))) == []
    told = list(not_there(policy, ("lab",)))
    assert [each.split(":")[:2] for each in told] == [["lending", " there is no pool other"]]
    assert len(list(not_there(policy, ()))) == 2
    assert list(not_there(replace(policy, lending=()), ())) == []
