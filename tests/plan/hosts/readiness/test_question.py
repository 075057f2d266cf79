"""What blocks a host, what is reported about stuns and options, and which VMs have no place when a host is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuops.errors import HostNotFound, UsageError
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, AssignmentPolicy, PciAddress
from gpuops.model.vcenter.host import AdmissionControl, ConfigTarget, DrsRule, RuleKind, StunEstimate
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, ManagedBy
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.hosts.change.emptying import Leaving, stun_hosts
from gpuops.plan.hosts.readiness import HostReadiness, Readiness, readiness
from gpuops.plan.moving import places
from gpuops.plan.moving.movability import admitted_moves
from gpuops.plan.moving.vmotion_stun import Stun
from tests.plan.hosts.readiness.brute_force import Small, can_be_emptied
from tests.plan.moving.worlds import world
from tests.plan.snapshots import catalog

TWO = world([[8, 8]], [[8]])
FIRST, SECOND = "vm-1-1-1", "vm-1-1-2"
KUBERNETES = "is managed by the vSphere Supervisor (VM Service): changed through Kubernetes (kubectl, in its namespace)"


def answer(inventory: Inventory, host: str = "esx-01") -> HostReadiness:
    [esx] = readiness(Scope(host=host), inventory, catalog()).hosts
    return esx


def vm(name: str, inventory: Inventory = TWO, **fields: Any) -> Inventory:
    """The same with fields of one VM changed."""
    return inventory.with_vm(replace(inventory.find_vm(name), **fields))


def host(name: str, inventory: Inventory = TWO, **fields: Any) -> Inventory:
    return inventory.with_hosts([replace(inventory.find_host(name), **fields)])


def in_cluster(inventory: Inventory = TWO, **fields: Any) -> Inventory:
    return inventory.with_cluster(replace(inventory.clusters["domain-c1"], **fields))


def telling(stuns: Mapping[int, int], inventory: Inventory = TWO, profile: str = "nvidia_a40-8q") -> Inventory:
    """Both hosts tell these estimates, by bandwidth."""
    config_target = ConfigTarget(stuns=tuple(StunEstimate(profile, mbps, seconds) for mbps, seconds in stuns.items()))
    return inventory.with_hosts([replace(esx, config_target=config_target) for esx in inventory.hosts.values()])


def test_each_move_has_its_place_and_its_turn() -> None:
    esx = answer(TWO)
    assert [
        (departure.vm.name, departure.leaving, departure.target and departure.target.name) for departure in esx.away
    ] == [
        (FIRST, Leaving.VMOTION, "esx-02"),
        (SECOND, Leaving.VMOTION, "esx-02"),
    ]
    assert esx.ready and esx.loss.spared and esx.proven
    assert [vm.name for vm in esx.unknown_stuns] == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("inventory", "name", "reasons"),
    [
        (
            vm(FIRST, managed_by=ManagedBy("com.vmware.vcenter.wcp", "VM")),
            FIRST,
            (KUBERNETES,),
        ),
        (
            vm(FIRST, attributes={"gpuops.pool": "lab"}),
            FIRST,
            ("lends its GPUs over the network (pool lab)",),
        ),
        (
            vm(FIRST, datastores=("local-1",)),
            FIRST,
            ("esx-02: its datastores cannot be read, so it is unknown whether it sees the files of vm-1-1-1",),
        ),
        (
            host("esx-02", vm(FIRST, datastores=("local-1",)), datastores=("shared",)),
            FIRST,
            ("esx-02: does not see datastore local-1, where files of vm-1-1-1 are",),
        ),
        (
            in_cluster(rules=(DrsRule("pair", RuleKind.TOGETHER, ("vm-100", "vm-101")),)),
            FIRST,
            ("DRS rule 'pair' keeps it together with others",),
        ),
        (
            in_cluster(admission=AdmissionControl(failover_hosts=("host-2",))),
            FIRST,
            ("esx-02: is a failover host of HA in cluster gpu",),
        ),
        (telling({10_000: 101}), FIRST, ("esx-02: estimates a stun of 101 s for vm-1-1-1, and 100 s are tolerated",)),
    ],
    ids=["managed", "lends", "unread files", "local storage", "rule", "failover host", "stun"],
)
def test_what_blocks_is_named(inventory: Inventory, name: str, reasons: tuple[str, ...]) -> None:
    esx = answer(inventory)
    assert not esx.ready
    assert (esx.stays[0].vm.name, esx.stays[0].reasons) == (name, reasons)
    assert all(blocker.hint for blocker in esx.blockers)


def test_a_directpath_vm_blocks_and_comes_back_nowhere() -> None:
    device = DirectPathDevice(13000, PciAddress.parse("0000:10:00.0"), NVIDIA_VENDOR_ID, 0x2235, "system")
    esx = answer(vm(FIRST, devices=(device,)))
    assert esx.stays[0].reasons == ("has a passthrough device that is not a vGPU",)
    assert [stranded_vm.reasons for stranded_vm in esx.loss.stranded] == [
        ("vm-1-1-1 has a passthrough device of its own host and starts on no other",)
    ]
    assert [(loss.profile, loss.placed, loss.running) for loss in esx.loss.profiles] == [
        ("nvidia_a40-8q", 1, 1),
        ("whole GPU", 0, 1),
    ]


def test_a_stun_is_the_range_of_bandwidths_and_the_sum_of_vgpus() -> None:
    assert set(answer(telling({10_000: 12, 25_000: 5})).stuns.values()) == {Stun(5, 12)}
    pair = vm(FIRST, telling({10_000: 12}), devices=TWO.find_vm(FIRST).devices * 2)  # type: ignore[operator]
    assert answer(pair).stuns["vm-100"] == Stun(24, 24)
    assert answer(telling({10_000: 12}, profile="nvidia_a40-8c")).stuns == {}
    slow = answer(telling({10_000: 120, 25_000: 50}))
    assert slow.ready
    assert "the stun of vm-1-1-1 may last 120 s; the cluster tolerates 100 s" in slow.notes
    raised = answer(in_cluster(telling({10_000: 101}), drs_options=(("VmDevicesStunTimeTolerated", "101"),)))
    assert raised.ready and raised.notes == ()


def test_a_setting_of_a_vm_that_is_named_after_stun_is_shown() -> None:
    esx = answer(vm(FIRST, extra_config={"vmotion.stunLimit": "7"}))
    assert esx.ready
    assert "vm-1-1-1 has vmotion.stunLimit = 7: its own limit for the stun may apply" in esx.notes


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        (
            {"drs_behavior": "manual", "drs_options": ()},
            ("DRS of cluster gpu is manual", "VgpuMMAutomationTimeoutSecs of cluster gpu is not set, not -1"),
        ),
        ({"drs_behavior": "fullyAutomated", "drs_options": (("VgpuMMAutomationTimeoutSecs", "-1"),)}, ()),
        (
            {"drs_enabled": False, "drs_options": (("VgpuMMAutomationTimeoutSecs", "60"),)},
            ("DRS of cluster gpu is off", "VgpuMMAutomationTimeoutSecs of cluster gpu is '60', not -1"),
        ),
        (
            {"drs_behavior": "fullyAutomated"},
            ("the advanced options of DRS of cluster gpu cannot be read",),
        ),
    ],
)
def test_why_maintenance_mode_would_wait(fields: dict[str, Any], reasons: tuple[str, ...]) -> None:
    esx = answer(in_cluster(**fields))
    assert (esx.by_vcenter, esx.ready) == (reasons, True)


def test_a_host_that_is_not_connected_is_not_free_and_one_in_maintenance_has_nothing_to_do() -> None:
    assert [str(blocker) for blocker in answer(host("esx-01", connected=False)).blockers][:1] == [
        "esx-01: is not connected to vCenter"
    ]
    idle = answer(host("esx-02", world([[8]], [[]]), in_maintenance=True), "esx-02")
    assert (idle.ready, idle.away, idle.notes) == (True, (), ("is in maintenance mode already",))


def test_failover_hosts_take_what_a_failed_host_ran() -> None:
    esx = answer(in_cluster(admission=AdmissionControl(failover_hosts=("host-2",))))
    assert esx.loss.spared and not esx.ready


def test_of_each_profile_it_is_told_how_many_come_back() -> None:
    esx = answer(world([[24, 24], [8, 8]], [[8, 8, 8, 8, 8]]))
    assert [(loss.profile, loss.placed, loss.running) for loss in esx.loss.profiles] == [
        ("nvidia_a40-24q", 0, 2),
        ("nvidia_a40-8q", 1, 2),
    ]
    assert not esx.loss.spared and esx.loss.proven
    assert all(stranded_vm.reasons for stranded_vm in esx.loss.stranded)


@pytest.mark.parametrize(
    ("rule", "spared"),
    [
        (DrsRule("apart", RuleKind.APART, ("vm-100", "vm-101")), False),
        (DrsRule("off", RuleKind.HOSTS, ("vm-100",), off=("host-2",), mandatory=True), False),
        (DrsRule("off", RuleKind.HOSTS, ("vm-100",), off=("host-2",), mandatory=False), True),
        (DrsRule("pair", RuleKind.TOGETHER, ("vm-100", "vm-101")), True),
    ],
)
def test_the_rules_that_hold_for_a_restart(rule: DrsRule, spared: bool) -> None:
    assert answer(in_cluster(rules=(rule,))).loss.spared is spared


def test_a_search_that_is_cut_off_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = world([[24, 24], [16]], [[], []], policy=AssignmentPolicy.PERFORMANCE)
    assert answer(spread).ready
    monkeypatch.setattr(places, "MOST_TRIES", 4)
    esx = answer(spread)
    assert (esx.ready, esx.proven, esx.loss.proven) == (False, False, False)


def test_stuns_are_asked_of_the_cluster_of_a_host_that_must_be_left() -> None:
    assert stun_hosts([TWO.find_host("esx-01")], TWO) == {"host-1", "host-2"}
    empty = world([[]], [[8]])
    assert stun_hosts([empty.find_host("esx-01")], empty) == frozenset()


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(HostNotFound):
        readiness(Scope(host="esx-09"), TWO, catalog())
    with pytest.raises(UsageError, match="no cluster 'none'"):
        readiness(Scope(cluster="none"), TWO, catalog())


MOST_VMS = 8
SIZES = (48, 24, 16, 12, 8)


def small(chance: Random) -> Small:
    """Up to four hosts of one or two GPUs, and up to eight VMs, most of them on the first host; memory is short in
    some. Where hosts have two GPUs and spread what arrives, the order of arrivals decides more often than not."""
    while True:
        gpus = chance.choice((1, 2, 2))
        sizes = chance.sample(SIZES, chance.choice((2, 3)))
        hosts = tuple(
            tuple(_on_one(chance, sizes, 0.1 if at == 0 else 0.6) for _ in range(gpus))
            for at in range(chance.randint(2, 4))
        )
        if 0 < sum(len(gpu) for esx in hosts for gpu in esx) <= MOST_VMS:
            memory = chance.choice((8, 64))
            free = tuple(chance.choice((512, 512, 512, 2 * memory, memory, 0)) for _ in hosts)
            return Small(hosts, free, memory, chance.random() < 0.3)


def _on_one(chance: Random, sizes: list[int], empty: float) -> tuple[int, ...]:
    size = 0 if chance.random() < empty else chance.choice(sizes)
    return (size,) * chance.randint(1, 48 // size) if size else ()


def inventory_of(of: Small) -> Inventory:
    """The snapshot of it."""
    policy = AssignmentPolicy.CONSOLIDATION if of.consolidates else AssignmentPolicy.PERFORMANCE
    used_gib = [sum(map(len, gpus)) * of.memory_gib for gpus in of.hosts]
    memory = {number: used + free for number, (used, free) in enumerate(zip(used_gib, of.free_gib, strict=True), 1)}
    return world(*of.hosts, policy=policy, memory_gib=of.memory_gib, host_gib=memory)


def find_readiness(of: Small) -> Readiness:
    return readiness(Scope(), inventory_of(of), catalog())


def check(seed: int) -> int:
    """How many hosts of the world of this seed can be emptied."""
    of = small(Random(seed))
    answer = find_readiness(of)
    for number, readiness_of_host in enumerate(answer.hosts):
        assert readiness_of_host.proven, of
        assert readiness_of_host.ready == can_be_emptied(of, number), (
            seed,
            of,
            number,
            [str(blocker) for blocker in readiness_of_host.blockers],
        )
        # what restarts anew obeys the same rules of GPUs and memory: nothing else differs in these worlds
        assert readiness_of_host.loss.spared == readiness_of_host.ready, (seed, of, number)
        if readiness_of_host.ready:
            steps = [RelocateVm(move.vm.ref, move.target.ref) for move in readiness_of_host.moves if move.target]
            assert len(steps) == len(readiness_of_host.away)
            down = [host for host in answer.inventory.hosts.values() if host.ref != readiness_of_host.host.ref]
            assert admitted_moves(steps, answer.inventory, catalog()) == len(steps), (seed, of, number)
            assert {step.host for step in steps} <= {host.ref for host in down}
    return sum(esx.ready for esx in answer.hosts)


def test_where_the_usual_order_fails_another_one_is_found() -> None:
    """The host spreads: two of 24 GiB that come first take both GPUs, and nothing is left for the third VM."""
    esx = find_readiness(Small((((24, 24), (16,)), ((), ())), (512, 512), 8, consolidates=False)).hosts[0]
    assert [move.vm.profiles[0] for move in esx.moves] in (
        ["nvidia_a40-16q", "nvidia_a40-24q", "nvidia_a40-24q"],
        ["nvidia_a40-24q", "nvidia_a40-16q", "nvidia_a40-24q"],
    )
    assert esx.ready and esx.loss.spared


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_it_is_what_brute_force_finds(first: int) -> None:
    ready = sum(check(seed) for seed in range(first, first + 50))
    assert 20 < ready < 140, "worlds in which some hosts can be emptied, and some cannot"


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_it_is_what_brute_force_finds_in_a_thousand_worlds(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
