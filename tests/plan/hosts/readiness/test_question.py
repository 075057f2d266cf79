"""What blocks a host, what is reported about stuns and options, and which VMs have no place when a host is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuops.errors import HostNotFound, UsageError
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, AssignmentPolicy, PciAddress
from gpuops.model.vcenter.host import AdmissionControl, ConfigTarget, DrsRule, RuleKind, StunEstimate
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, ManagedBy
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.emptying import Leaving, stun_hosts
from gpuops.plan.hosts.readiness import HostReadiness, readiness
from gpuops.plan.moving import places
from gpuops.plan.moving.vmotion_stun import Stun
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
