"""Clusters in the queue start whole: two of them, and room for one and a half."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, RdmaKind
from gpuops.plan.core.plan import Choice
from gpuops.plan.rotation.ml_queue.ml_vms import Start, WaitingVm
from gpuops.plan.rotation.ml_queue.queue import QueueDecision
from gpuops.plan.rotation.ml_queue.whole_clusters import decide_with_clusters
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
