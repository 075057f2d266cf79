"""What `gpuops defrag` answers: on worlds small enough to know by heart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuops.advise.fragmentation import measure_fragmentation, sum_of_models
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, VgpuMode
from gpuops.model.vcenter.host import ConfigTarget, StunEstimate
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.moving.defrag import Defrag, Defragmentation, PlannedMove
from gpuops.plan.moving.frontier import TABLES
from gpuops.plan.moving.movability import MoveMethod, admitted_moves
from tests.plan.moving.worlds import address, after, by_chance, free, world
from tests.plan.snapshots import catalog


def plan_defrag(now: Inventory, **options: Any) -> Defragmentation:
    return Defrag(**options).find_moves(now, catalog())


def describe_moves(moves: tuple[PlannedMove, ...]) -> list[tuple[str, str, str]]:
    return [(move.vm.name, move.source.name, move.target.name) for move in moves]


def with_vm_change(now: Inventory, **fields: Any) -> Inventory:
    """The world with the first VM so."""
    return now.with_vm(replace(now.vms["vm-100"], **fields))


def unmigratable(now: Inventory) -> Inventory:
    return now.with_hosts(
        replace(host, profiles=tuple(replace(offer, migrate=None) for offer in host.profiles or ()))
        for host in now.hosts.values()
    )


def test_the_emptiest_gpu_is_freed() -> None:
    defrag = plan_defrag(world([[8, 8, 8]], [[8, 8]], [[8, 8, 8]]))
    assert describe_moves(defrag.moves) == [("vm-2-1-1", "esx-02", "esx-01"), ("vm-2-1-2", "esx-02", "esx-01")]
    assert (
        defrag.before,
        defrag.after,
        defrag.bound,
        defrag.proven,
        defrag.stays,
    ) == (0, 1, 1, True, ())
    assert [move.free for move in defrag.moves] == [0, 1]
    assert defrag.steps_of_gain == ((2, 1),)


def test_the_gpus_are_told_before_and_after() -> None:
    defrag = plan_defrag(world([[8, 8], []], [[8]]))
    changes = [
        (
            host_summary.host.name,
            host_summary.before,
            host_summary.after,
            [(str(g.address), g.before.at_most, g.after.at_most) for g in host_summary.gpus],
        )
        for host_summary in defrag.hosts
    ]
    assert changes == [("esx-01", 1, 1, [(address(0), 2, 3)]), ("esx-02", 0, 1, [(address(0), 1, 0)])]
    (move,) = defrag.moves
    assert move.gpus == (PciAddress.parse(address(0)),)


def test_among_equals_it_is_not_told_which_gpu_is_free_then() -> None:
    (host, _) = plan_defrag(world([[], [], [8]], [[24], [24], [8], [8]]), profile="nvidia_a40-48q").hosts
    assert host.host.name == "esx-01"


def fragmented_mib(now: Inventory) -> int:
    return round(sum_of_models(measure_fragmentation(now.hosts.values(), now, catalog())).fragmented_mib)


@pytest.mark.parametrize("seed", range(12))
def test_a_budget_leaves_no_more_memory_fragmented_than_any_other_moves(seed: int) -> None:
    """Beside every pair of moves, each measured on the snapshot after it."""
    now = world(*by_chance(Random(seed), hosts=3, gpus=1), host_gib={1: 512, 2: 512, 3: 512})
    defrag = plan_defrag(now, budget=2)
    assert defrag.proven and defrag.fragmented_mib is not None and len(defrag.moves) <= 2
    assert defrag.fragmented_mib[0] == pytest.approx(fragmented_mib(now), abs=3)
    assert defrag.fragmented_mib[1] == pytest.approx(fragmented_mib(after(steps_of(defrag), now)), abs=3)
    worlds_after_two_moves = [
        after([first, second], now) for first in moves_of(now) for second in moves_of(after([first], now))
    ]
    for world_after in [*(after([first], now) for first in moves_of(now)), *worlds_after_two_moves]:
        assert fragmented_mib(world_after) >= defrag.fragmented_mib[1] - 3


@pytest.mark.parametrize(("stun_s", "moves"), [(100, 1), (101, 0)])
def test_no_vm_moves_whose_stun_is_longer_than_the_cluster_tolerates(stun_s: int, moves: int) -> None:
    now = world([[8, 8]], [[8], [24, 24]])
    target = ConfigTarget(stuns=(StunEstimate("nvidia_a40-8q", 10_000, stun_s),))
    now = now.with_hosts([replace(host, config_target=target) for host in now.hosts.values()])
    defrag = plan_defrag(now, budget=1)
    assert len(defrag.moves) == moves
    reasons = [reason for stay in defrag.stays for reason in stay.reasons if "stun" in reason]
    assert bool(reasons) == (moves == 0)
    assert all("estimates a stun of 101 s" in reason for reason in reasons)


def steps_of(defrag: Defragmentation) -> list[RelocateVm]:
    return [move.step for move in defrag.moves]


def moves_of(now: Inventory) -> list[RelocateVm]:
    """Every move to another host that is admitted."""
    steps = [RelocateVm(vm, host) for vm in now.vms for host in now.hosts if now.vms[vm].host != host]
    return [step for step in steps if admitted_moves([step], now, catalog())]


@pytest.mark.long
@pytest.mark.parametrize("mode", [VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE])
@pytest.mark.parametrize("policy", AssignmentPolicy)
def test_a_fleet_too_large_to_be_searched_is_confirmed_move_by_move(policy: AssignmentPolicy, mode: VgpuMode) -> None:
    now = world(*by_chance(Random(1), hosts=40, gpus=4), policy=policy, mode=mode, memory_gib=24)
    assert 39 * len(now.vms) > TABLES
    defrag = plan_defrag(now)
    assert defrag.after - defrag.before >= 20
    assert free(after([move.step for move in defrag.moves], now)) >= defrag.after
    assert defrag.after <= defrag.bound
    few = plan_defrag(now, max_moves=5)
    assert len(few.moves) <= 5
    assert few.after - few.before >= 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda now: replace(now, hot_migrate_enabled=False),
            "vMotion with a vGPU is switched off (vgpu.hotmigrate.enabled)",
        ),
        (lambda now: replace(now, hot_migrate_enabled=None), "vgpu.hotmigrate.enabled cannot be read"),
        (unmigratable, "esx-01 does not report that nvidia_a40-8q can be migrated"),
        (
            lambda now: with_vm_change(now, extra_config={"pciPassthru0.cfg.enable_uvm": "1"}),
            "enable_uvm rules out vMotion",
        ),
    ],
)
def test_what_cannot_move_while_it_runs_moves_powered_off_if_that_is_asked_for(
    change: Callable[[Inventory], Inventory], reason: str
) -> None:
    now = change(world([[8]], [[8] * 5]))
    defrag = plan_defrag(now, max_moves=1)
    (first, *_) = defrag.stays
    assert (defrag.moves, first.way, first.reasons) == ((), MoveMethod.POWERED_OFF, (reason,))
    with_powered_off = plan_defrag(now, powered_off=True, max_moves=1)
    assert describe_moves(with_powered_off.moves) == [("vm-1-1-1", "esx-01", "esx-02")]
    assert (with_powered_off.after, with_powered_off.moves[0].way, with_powered_off.stays) == (
        1,
        MoveMethod.POWERED_OFF,
        (),
    )


@pytest.mark.long
def test_memory_is_reserved_where_a_vm_arrives() -> None:
    now = world([[8]], [[8, 8]], [[8, 8, 8]], memory_gib=64, host_gib={2: 180})
    assert {target for _, _, target in describe_moves(plan_defrag(now, max_moves=1).moves)} == {"esx-03"}


@pytest.mark.long
def test_a_suspended_vm_keeps_its_place() -> None:
    full = world([[8]], [[8] * 5])
    slept = full.with_vm(replace(full.vms["vm-101"], power=PowerState.SUSPENDED))
    gpus = tuple(
        replace(gpu, vms=tuple(ref for ref in gpu.vms or () if ref != "vm-101")) for gpu in slept.hosts["host-2"].gpus
    )
    slept = slept.with_hosts([replace(slept.hosts["host-2"], gpus=gpus)])
    assert describe_moves(plan_defrag(slept).moves) == [("vm-1-1-1", "esx-01", "esx-02")], "the sixth slot is free"
    crowded = slept.with_vm(replace(slept.vms["vm-100"], ref="vm-200", name="vm-new", host="host-2"))
    gpus = tuple(replace(gpu, vms=(*(gpu.vms or ()), "vm-200")) for gpu in crowded.hosts["host-2"].gpus)
    crowded = crowded.with_hosts([replace(crowded.hosts["host-2"], gpus=gpus)])
    assert plan_defrag(crowded).moves == (), "the slot is kept for its return"
