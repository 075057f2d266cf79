"""What `gpuops defrag` answers: on worlds small enough to know by heart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuops.errors import HostNotFound, Refused, UsageError
from gpuops.model.gpu import AssignmentPolicy, PciAddress, VgpuMode
from gpuops.model.host import Cluster, DrsRule, OfferedProfile, RuleKind
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DirectPathDevice, PowerState, VgpuDevice
from gpuops.plan.moving.frontier import TABLES
from gpuops.plan.moving.movability import MoveMethod
from gpuops.plan.moving.plan import Defrag
from gpuops.plan.moving.result import Defragmentation, PlannedMove
from tests.plan.moving.worlds import address, after, by_chance, free, world
from tests.plan.snapshots import catalog

TWO_HALVES = ([[8]], [[8, 8]])
"""The one VM of esx-01 has room on esx-02."""


def planned(now: Inventory, **asked: Any) -> Defragmentation:
    return Defrag(**asked).planned(now, catalog())


def told(moves: tuple[PlannedMove, ...]) -> list[tuple[str, str, str]]:
    return [(move.vm.name, move.source.name, move.target.name) for move in moves]


def only_stay(found: Defragmentation) -> str:
    (stay,) = found.stays
    assert stay.vm.name == "vm-1-1-1"
    return "; ".join(stay.reasons)


def changed(now: Inventory, **fields: Any) -> Inventory:
    """The world with the first VM so."""
    return now.with_vm(replace(now.vms["vm-100"], **fields))


def ruled(now: Inventory, *rules: DrsRule, **fields: Any) -> Inventory:
    cluster = replace(now.clusters["domain-c1"], rules=rules, **fields)
    return replace(now, clusters={cluster.ref: cluster})


def unmigratable(now: Inventory) -> Inventory:
    return now.with_hosts(
        replace(host, profiles=tuple(replace(offer, migrate=None) for offer in host.profiles or ()))
        for host in now.hosts.values()
    )


def test_the_emptiest_gpu_is_freed() -> None:
    found = planned(world([[8, 8, 8]], [[8, 8]], [[8, 8, 8]]))
    assert told(found.moves) == [("vm-2-1-1", "esx-02", "esx-01"), ("vm-2-1-2", "esx-02", "esx-01")]
    assert (found.before, found.after, found.bound, found.proven, found.stays) == (0, 1, 1, True, ())
    assert [move.free for move in found.moves] == [0, 1]
    assert found.steps_of_gain == ((2, 1),)


def test_the_gpus_are_told_before_and_after() -> None:
    found = planned(world([[8, 8], []], [[8]]))
    changes = [
        (
            each.host.name,
            each.before,
            each.after,
            [(str(g.address), g.before.at_most, g.after.at_most) for g in each.gpus],
        )
        for each in found.hosts
    ]
    assert changes == [("esx-01", 1, 1, [(address(0), 2, 3)]), ("esx-02", 0, 1, [(address(0), 1, 0)])]
    (move,) = found.moves
    assert move.gpus == (PciAddress.parse(address(0)),)


def test_nothing_to_free_is_an_answer() -> None:
    found = planned(world([[8, 8, 8]], [[24]]))
    assert (found.moves, found.before, found.after, found.proven) == ((), 0, 0, True)


def test_no_more_moves_than_allowed() -> None:
    now = world([[8, 8, 8]], [[8, 8]], [[8]])
    assert len(planned(now).moves) == 3
    one = planned(now, max_moves=1)
    assert (told(one.moves), one.after, one.proven) == ([("vm-3-1-1", "esx-03", "esx-01")], 1, True)
    assert planned(now, max_moves=0).moves == ()


def test_a_negative_number_of_moves_means_nothing() -> None:
    with pytest.raises(UsageError, match="-1 moves"):
        Defrag(max_moves=-1)


def test_where_only_another_gpu_of_its_own_host_has_room_a_vm_goes_and_comes_back() -> None:
    now = world([[8], [8]], [[24, 24], []])
    found = planned(now)
    assert (found.before, found.after, found.proven) == (1, 2, True)
    assert [(source, target) for _, source, target in told(found.moves)] == [("esx-01", "esx-02"), ("esx-02", "esx-01")]
    assert free(after([move.step for move in found.moves], now)) == 2


def test_slots_of_a_profile() -> None:
    now = world([[8, 8], [24]], [[8], [24, 24]])
    found = planned(now, profile="a40-24q")
    assert (found.profile, found.before, found.after) == ("nvidia_a40-24q", 1, 3)
    assert told(found.moves) == [("vm-2-1-1", "esx-02", "esx-01")]


def test_slots_are_counted_where_the_profile_is_offered() -> None:
    now = world([[8]], [[8]])
    offered = tuple(OfferedProfile(name, *[True] * 4) for name in ("nvidia_a40-8q",))
    now = now.with_hosts([replace(now.hosts["host-1"], profiles=offered)])
    found = planned(now, profile="nvidia_a40-24q")
    assert told(found.moves) == [("vm-2-1-1", "esx-02", "esx-01")], "not the other way round"
    assert found.after == 2


def test_performance_gives_up_a_free_gpu_to_free_more() -> None:
    """A host with a free GPU puts there what arrives; from then on it takes the others too."""
    performance = AssignmentPolicy.PERFORMANCE
    now = world([[16], []], *[[[8]]] * 4, policy=performance)
    found = planned(now)
    assert (found.before, found.after) == (1, 4)
    assert free(after([move.step for move in found.moves], now)) == 4


def test_among_equals_it_is_not_told_which_gpu_is_free_then() -> None:
    (host, _) = planned(world([[], [], [8]], [[24], [24], [8], [8]]), profile="nvidia_a40-48q").hosts
    assert host.host.name == "esx-01"


@pytest.mark.parametrize("mode", [VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE])
@pytest.mark.parametrize("policy", AssignmentPolicy)
def test_a_fleet_too_large_to_be_searched_is_confirmed_move_by_move(policy: AssignmentPolicy, mode: VgpuMode) -> None:
    now = world(*by_chance(Random(1), hosts=40, gpus=4), policy=policy, mode=mode, memory_gib=24)
    assert 39 * len(now.vms) > TABLES
    found = planned(now)
    assert found.gained >= 20
    assert free(after([move.step for move in found.moves], now)) >= found.after
    assert found.after <= found.bound
    few = planned(now, max_moves=5)
    assert len(few.moves) <= 5
    assert few.gained >= 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"attributes": {"gpuops.opt-out": "true"}}, "opted out (attribute gpuops.opt-out)"),
        ({"extra_config": {"pciPassthru0.cfg.gpu-pci-id": address(0)}}, f"is pinned to GPU {address(0)}"),
        ({"extra_config": {"numa.nodeAffinity": "1"}}, "is bound to NUMA node 1 (numa.nodeAffinity)"),
        ({"extra_config": {"sched.cpu.affinity": "0-3"}}, "is bound to CPUs (sched.cpu.affinity)"),
        ({"extra_config": None}, "its settings cannot be read"),
        ({"question": "msg.1"}, "waits for an answer to a question"),
        ({"connected": None}, "is not connected, or does not tell"),
        ({"memory_mib": None}, "its memory size cannot be read"),
        ({"power": None}, "whether it runs cannot be read"),
        ({"power": PowerState.SUSPENDED}, "is suspended: it holds no slot, and its place is kept for its return"),
        (
            {
                "devices": (
                    VgpuDevice(13000, "nvidia_a40-8q"),
                    DirectPathDevice(13001, PciAddress(0, 9, 0, 0), 1, 1, "s"),
                )
            },
            "has a passthrough device that is no vGPU",
        ),
        ({"devices": (VgpuDevice(13000, "nvidia_a40-8q", group=1),)}, "its vGPUs are a device group"),
    ],
)
def test_a_vm_that_may_not_move_stays_and_says_why(fields: dict[str, Any], reason: str) -> None:
    found = planned(changed(world([[8]], [[8] * 5]), **fields), max_moves=1)
    assert found.moves == ()
    assert only_stay(found).startswith(reason)


@pytest.mark.parametrize("kind", [RuleKind.APART, RuleKind.TOGETHER])
def test_a_rule_about_company_keeps_a_vm_where_it_is(kind: RuleKind) -> None:
    now = ruled(world([[8]], [[8] * 5]), DrsRule("pair", kind, ("vm-100",)))
    assert only_stay(planned(now)) == f"DRS rule 'pair' keeps it {kind} with others"


def test_a_rule_about_hosts_keeps_a_vm_off_them() -> None:
    now = ruled(world([[8]], [[8, 8]], [[8, 8, 8]]), DrsRule("licence", RuleKind.HOSTS, ("vm-100",), off=("host-2",)))
    assert told(planned(now, max_moves=1).moves) == [("vm-1-1-1", "esx-01", "esx-03")]
    found = planned(ruled(world([[8]], [[8] * 5]), DrsRule("home", RuleKind.HOSTS, ("vm-100",), on=("host-1",))))
    assert only_stay(found) == "esx-02: DRS rule 'home' keeps vm-1-1-1 off it"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda now: ruled(now, drs_excluded=("vm-100",)), "DRS is switched off for it"),
        (lambda now: replace(now, clusters={"domain-c1": Cluster("domain-c1", "gpu")}), "the DRS rules of cluster gpu"),
        (lambda now: replace(now, clusters={}), "is in no cluster"),
        (lambda now: now.with_hosts([replace(now.hosts["host-1"], connected=False)]), "esx-01 is not connected"),
        (lambda now: now.with_hosts([replace(now.hosts["host-2"], in_maintenance=True)]), "esx-02: is in maintenance"),
        (
            lambda now: now.with_hosts([replace(now.hosts["host-2"], profiles=())]),
            "esx-02: does not offer nvidia_a40-8q",
        ),
        (lambda now: changed(now, datastores=("datastore-9",)), "esx-02: which datastores it sees cannot be read"),
    ],
)
def test_what_speaks_against_moving_it(change: Callable[[Inventory], Inventory], reason: str) -> None:
    found = planned(change(world([[8]], [[8] * 5])), max_moves=1)
    reasons = {stay.vm.name: stay.reasons for stay in found.stays}
    assert found.moves == ()
    assert any(each.startswith(reason) for each in reasons["vm-1-1-1"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda now: replace(now, hot_migrate_enabled=False),
            "vMotion with a vGPU is switched off (vgpu.hotmigrate.enabled)",
        ),
        (lambda now: replace(now, hot_migrate_enabled=None), "vgpu.hotmigrate.enabled cannot be read"),
        (unmigratable, "esx-01 does not say that nvidia_a40-8q can be migrated"),
        (lambda now: changed(now, extra_config={"pciPassthru0.cfg.enable_uvm": "1"}), "enable_uvm rules out vMotion"),
    ],
)
def test_what_cannot_move_while_it_runs_moves_powered_off_if_that_is_asked_for(
    change: Callable[[Inventory], Inventory], reason: str
) -> None:
    now = change(world([[8]], [[8] * 5]))
    found = planned(now, max_moves=1)
    (first, *_) = found.stays
    assert (found.moves, first.way, first.reasons) == ((), MoveMethod.POWERED_OFF, (reason,))
    asked = planned(now, powered_off=True, max_moves=1)
    assert told(asked.moves) == [("vm-1-1-1", "esx-01", "esx-02")]
    assert (asked.after, asked.moves[0].way, asked.stays) == (1, MoveMethod.POWERED_OFF, ())


def test_memory_is_reserved_where_a_vm_arrives() -> None:
    now = world([[8]], [[8, 8]], [[8, 8, 8]], memory_gib=64, host_gib={2: 180})
    assert {target for _, _, target in told(planned(now, max_moves=1).moves)} == {"esx-03"}


def test_a_suspended_vm_keeps_its_place() -> None:
    full = world([[8]], [[8] * 5])
    slept = full.with_vm(replace(full.vms["vm-101"], power=PowerState.SUSPENDED))
    gpus = tuple(
        replace(gpu, vms=tuple(ref for ref in gpu.vms or () if ref != "vm-101")) for gpu in slept.hosts["host-2"].gpus
    )
    slept = slept.with_hosts([replace(slept.hosts["host-2"], gpus=gpus)])
    assert told(planned(slept).moves) == [("vm-1-1-1", "esx-01", "esx-02")], "the sixth slot is nobody's"
    crowded = slept.with_vm(replace(slept.vms["vm-100"], ref="vm-200", name="vm-new", host="host-2"))
    gpus = tuple(replace(gpu, vms=(*(gpu.vms or ()), "vm-200")) for gpu in crowded.hosts["host-2"].gpus)
    crowded = crowded.with_hosts([replace(crowded.hosts["host-2"], gpus=gpus)])
    assert planned(crowded).moves == (), "the slot is kept for its return"


def test_a_gpu_that_cannot_be_read_is_neither_free_nor_filled() -> None:
    now = world([[]], [[8]], [[8]])
    hidden = tuple(replace(gpu, vms=None) for gpu in now.hosts["host-1"].gpus)
    now = now.with_hosts([replace(now.hosts["host-1"], gpus=hidden), replace(now.hosts["host-3"], in_maintenance=True)])
    found = planned(now)
    assert (found.before, found.after, found.moves) == (0, 0, ())
    assert [(each.host.name, each.because) for each in found.unclear] == [
        ("esx-01", "the host does not tell which VMs run on it"),
        ("esx-03", "its host is in maintenance mode, or does not tell"),
    ]


def test_only_hosts_of_the_scope_take_part() -> None:
    now = world([[8]], [[8, 8]], [[8]])
    assert told(planned(now, host="esx-0[13]").moves) == [("vm-1-1-1", "esx-01", "esx-03")]
    alone = planned(now, host="esx-01")
    assert (alone.moves, only_stay(alone)) == ((), "no other host takes part")
    assert planned(now, cluster="gpu").after == 2


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"profile": "a40-99q"}, Refused),
        ({"host": "esx-99"}, HostNotFound),
        ({"cluster": "gup"}, UsageError),
    ],
)
def test_a_name_that_means_nothing_here(asked: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        planned(world(*TWO_HALVES), **asked)
