"""Clusters in the queue start complete or not at all, and so many desktops stay for users as are kept or forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, RdmaKind
from gpuops.plan.core.plan import Choice
from gpuops.plan.rotation.ml_queue.ml_vms import Start, WaitingVm
from gpuops.plan.rotation.ml_queue.queue import QueueDecision
from gpuops.plan.rotation.ml_queue.whole_clusters import decide_with_clusters
from gpuops.plan.rotation.nights.desktops import KeptForUsers
from tests.execute.small_vcenter import small_world


def world(*sizes: int) -> tuple[Inventory, tuple[WaitingVm, ...]]:
    """Clusters `c0`, `c1` of so many VMs each, all of them off and in the queue, after an ML VM of no cluster."""
    base = small_world().snapshot()
    vm = base.find_vm("ml-01")
    vms = [vm, *(_member(vm, number, rank, size) for number, size in enumerate(sizes) for rank in range(size))]
    return replace(base, vms={cluster_vm.ref: cluster_vm for cluster_vm in vms}), tuple(
        WaitingVm(QueuedVm(cluster_vm.name), cluster_vm.name, cluster_vm) for cluster_vm in vms
    )


def _member(vm: Vm, number: int, rank: int, nodes: int) -> Vm:
    marker = ClusterMarker(f"c{number}", rank, nodes, f"{number:08x}", "0" * 12, 1, RdmaKind.NONE)
    name = f"c{number}-{rank:02}"
    return replace(vm, ref=f"vm-{name}", name=name, extra_config={MARKER_KEY: marker.text})


def decide_queue(queue: tuple[WaitingVm, ...], inventory: Inventory, room: int) -> tuple[QueueDecision, int]:
    """Where so many of the queue find room, the first ones; and how often that was asked."""
    asked = 0
    host = inventory.hosts["host-1"]

    def decide(waiting: tuple[WaitingVm, ...]) -> QueueDecision:
        nonlocal asked
        asked += 1
        starts: list[Start] = []
        choices: list[Choice] = []
        for waiting_vm in waiting:
            fits = waiting_vm.vm is not None and not waiting_vm.reason and len(starts) < room
            if fits and waiting_vm.vm is not None:
                starts.append(Start(waiting_vm.vm, waiting_vm.queued, host, ()))
            choices.append(
                Choice(waiting_vm.name, chosen=fits, reason=waiting_vm.reason or ("" if fits else "no room"))
            )
        return QueueDecision((tuple(starts),), tuple(choices))

    return decide_with_clusters(decide, queue, inventory), asked


def names(decision: QueueDecision) -> list[str]:
    return [start.vm.name for start in decision.starts]


def test_the_last_cluster_in_part_is_left_out_and_its_room_goes_to_others() -> None:
    inventory, queue = world(2, 2)
    decision, _ = decide_queue(queue, inventory, 4)
    assert names(decision) == ["ml-01", "c0-00", "c0-01"]
    last = decision.choices[-1]
    assert last.reason == "its cluster c1 starts completely or not at all: c1-01: no room"
    decision, _ = decide_queue(tuple(reversed(queue)), inventory, 3)
    assert names(decision) == ["c1-01", "c1-00", "ml-01"]


@pytest.mark.parametrize("room", [0, 2, 9])
def test_without_clusters_it_is_decided_once(room: int) -> None:
    inventory, queue = world()
    decision, call_count = decide_queue(queue, inventory, room)
    assert (names(decision), call_count) == (["ml-01"] if room else [], 1)


@given(st.lists(st.integers(1, 4), max_size=5), st.integers(0, 14), st.randoms(use_true_random=False))
def test_no_cluster_ever_starts_in_part_and_no_queue_is_decided_more_often_than_it_has_clusters(
    sizes: list[int], room: int, shuffler: object
) -> None:
    inventory, queue = world(*sizes)
    order = list(queue)
    shuffler.shuffle(order)  # type: ignore[attr-defined]
    decision, call_count = decide_queue(tuple(order), inventory, room)
    started = [name.partition("-")[0] for name in names(decision) if name != "ml-01"]
    assert all(started.count(f"c{number}") in (0, size) for number, size in enumerate(sizes))
    assert call_count <= len(sizes) + 1
    assert [choice.subject for choice in decision.choices] == [waits.name for waits in order]


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
