"""How many desktops users are to find: a forecast brings more of them back, or keeps more, and never fewer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.rotation.nights.desktops import KeptForUsers

COUNTS = st.integers(0, 30)


def desktops(count: int) -> list[Vm]:
    return [Vm(f"vm-{number}", f"d-{number}", path=f"/dc/vm/vdi/d-{number}") for number in range(count)]


def kept_for_users(at_least: int, ready: int, running: int, expected: int | None) -> tuple[KeptForUsers, Pool]:
    pool = Pool("office", Selector(folder="vdi"), IdleRule(500), parked=True, ready=at_least)
    forecast = {} if expected is None else {pool.name: expected}
    return KeptForUsers(Policy("p", (pool,)), {pool.name: ready}, {pool.name: running}, forecast), pool


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_forecast_gives_back_earlier_or_takes_later(
    at_least: int, ready: int, used: int, expected: int, taken_count: int
) -> None:
    without, pool = kept_for_users(at_least, ready, ready + used, None)
    ahead, _ = kept_for_users(at_least, ready, ready + used, expected)
    assert ahead.missing(pool) == max(without.missing(pool), expected - ready - used)
    if without.objection(desktops(taken_count)):
        assert ahead.objection(desktops(taken_count)) == without.objection(desktops(taken_count))
    if taken_count and not ahead.objection(desktops(taken_count)):
        assert ready + used - taken_count >= expected, "as many run as are expected to be needed"


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_what_may_be_taken_is_not_missing_afterwards(at_least: int, ready: int, used: int, expected: int) -> None:
    """Or a watch would take and bring back the same desktop again and again."""
    now, pool = kept_for_users(at_least, ready, ready + used, expected)
    taken_count = next((count for count in range(ready, 0, -1) if not now.objection(desktops(count))), 0)
    if taken_count:
        after, _ = kept_for_users(at_least, ready - taken_count, ready + used - taken_count, expected)
        assert after.missing(pool) <= 0


def test_where_nothing_is_kept_a_desktop_may_be_taken_that_is_the_last() -> None:
    free, pool = kept_for_users(0, 1, 1, None)
    assert free.objection(desktops(1)) == ""
    assert free.missing(pool) == -1


def test_a_look_counts_desktops_that_run_and_leaves_out_those_behind_a_gate() -> None:
    on = Vm("vm-1", "d-1", path="/dc/vm/vdi/d-1", power=PowerState.ON)
    off = Vm("vm-2", "d-2", path="/dc/vm/vdi/d-2", power=PowerState.OFF)
    gated = Pool("office", Selector(folder="vdi"), IdleRule(500), gated=True)
    for pool, running in ((Pool("office", Selector(folder="vdi"), IdleRule(500), parked=True), 1), (gated, 0)):
        counts = KeptForUsers.of(Policy("p", (pool,)), [on, off], {"office": 5})
        assert dict(counts.running) == ({"office": running} if running else {})
        assert counts.missing(pool) == 5 - running
