"""Which hosts a rolling change takes in which order, where their VMs go, and whom it refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.config.date_text import parse_window
from gpuops.errors import UsageError
from gpuops.execute.site import catalog_of
from gpuops.model.vcenter.host import AdmissionControl
from gpuops.model.vcenter.host_settings import Displacement, Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import ConfigureModule, HostStep
from gpuops.plan.hosts.change.emptying import Leaving
from gpuops.plan.hosts.change.rolling_plan import Roll, plan_roll
from gpuops.plan.moving.movability import HOT_MIGRATE
from gpuops.sim.world import World
from tests.nights.world.showing import Showing
from tests.wire.hosts.clusters import START, cluster, desktops


def snapshot_of(world: World) -> Inventory:
    snapshot = Showing(world).inventory()
    clusters = {ref: replace(group, rules=group.rules or ()) for ref, group in snapshot.clusters.items()}
    snapshot = replace(snapshot, clusters=clusters, hot_migrate_enabled=bool(world.options[HOT_MIGRATE]))
    return snapshot.with_hosts([replace(host, booted=START) for host in snapshot.hosts.values()])


def plan_of_roll(inventory: Inventory, hosts: str = "*", now: datetime = START, **options: Any) -> Roll:
    named_hosts = [host for host in inventory.hosts.values() if hosts in ("*", host.name)]
    steps = tuple(ConfigureModule(host.ref, "", "a=1") for host in named_hosts)
    plan: Plan[HostStep] = Plan((Wave("hosts", steps),), reboots=frozenset(step.host for step in steps))
    return plan_roll(plan, Rolling(**options), inventory, catalog_of(inventory), now)


def rounds(roll: Roll) -> list[list[str]]:
    assert roll.rejections == (), [str(rejection) for rejection in roll.rejections]
    return [[turn.host.name for turn in turns] for turns in roll.rounds]


def leaving(roll: Roll, host: str) -> dict[str, tuple[Leaving, str | None]]:
    [turn] = [turn for turn in roll.planned_hosts if turn.host.name == host]
    return {
        departure.vm.name: (departure.leaving, departure.target.name if departure.target else None)
        for departure in turn.away
    }


def refusals(roll: Roll) -> list[str]:
    assert roll.rounds == ()
    return [str(rejection) for rejection in roll.rejections]


def test_the_host_with_the_fewest_vms_is_first() -> None:
    inventory = snapshot_of(cluster(3, [desktops(1, 3, first=1), desktops(2, 1, first=4)]))
    roll = plan_of_roll(inventory)
    assert rounds(roll) == [["esx-03"], ["esx-02"], ["esx-01"]]
    assert leaving(roll, "esx-02") == {"vdi-004": (Leaving.VMOTION, "esx-03")}


def test_as_many_are_down_together_as_may_be_and_as_leave_room() -> None:
    inventory = snapshot_of(cluster(4, [desktops(host, 3, first=host * 10) for host in (1, 2, 3, 4)]))
    assert rounds(plan_of_roll(inventory, max_hosts=2)) == [["esx-01", "esx-02"], ["esx-03", "esx-04"]]
    idle = snapshot_of(cluster(5, []))
    assert [len(turns) for turns in rounds(plan_of_roll(idle, max_hosts=2))] == [2, 2, 1]
    assert [len(turns) for turns in rounds(plan_of_roll(idle))] == [1] * 5
    full = snapshot_of(cluster(4, [desktops(host, 4, first=host * 10) for host in (1, 2, 3, 4)]))
    assert [len(turns) for turns in rounds(plan_of_roll(full, max_hosts=2))] == [1, 1, 1, 1]


def test_no_vm_goes_to_a_host_that_is_down_with_its_own() -> None:
    """Where it would be emptied anew, or not at all: the emptiest host is one of those that are down."""
    inventory = snapshot_of(cluster(4, [desktops(1, 2, first=1), desktops(3, 4, first=10), desktops(4, 4, first=20)]))
    [first, *_] = plan_of_roll(inventory, max_hosts=2).rounds
    assert {turn.host.name for turn in first} == {"esx-01", "esx-02"}
    assert {departure.target.name for turn in first for departure in turn.away if departure.target} <= {
        "esx-03",
        "esx-04",
    }


def test_a_vm_that_finds_no_room_is_named_with_what_each_host_says() -> None:
    inventory = snapshot_of(cluster(2, [desktops(1, 6, first=1), desktops(2, 6, first=7)]))
    [first, *_] = refusals(plan_of_roll(inventory, "esx-01"))
    assert (
        first == "esx-01: vdi-001 cannot leave the host while it runs: esx-02: it is not certain that the VM has room"
    )


@pytest.mark.parametrize(
    ("vms", "way"), [(Displacement.SHUT_DOWN, Leaving.SHUT_DOWN), (Displacement.POWER_OFF, Leaving.POWER_OFF)]
)
def test_what_cannot_be_moved_is_shut_down_where_that_is_allowed(vms: Displacement, way: Leaving) -> None:
    inventory = snapshot_of(cluster(2, [desktops(1, 1, first=1)], hot_migrate=False))
    rule = "vMotion with a vGPU is switched off (vgpu.hotmigrate.enabled)"
    assert refusals(plan_of_roll(inventory)) == [f"esx-01: vdi-001 cannot leave the host while it runs: {rule}"]
    assert leaving(plan_of_roll(inventory, vms=vms), "esx-01") == {"vdi-001": (way, None)}


def test_a_guest_without_tools_cannot_be_asked_to_shut_down() -> None:
    world = cluster(1, [desktops(1, 1, first=1, guest="bare")])
    [refusal] = refusals(plan_of_roll(snapshot_of(world), vms=Displacement.SHUT_DOWN))
    assert refusal == (
        "esx-01: vdi-001 can be neither moved nor shut down: "
        "no other host in its cluster; VMware Tools do not run in it, or their state is unknown"
    )


def test_who_opted_out_is_neither_moved_nor_shut_down() -> None:
    world = cluster(2, [desktops(1, 1, first=1, attributes={"gpuops.opt-out": "yes"})])
    [refusal] = refusals(plan_of_roll(snapshot_of(world), vms=Displacement.POWER_OFF))
    assert refusal.startswith(
        "esx-01: vdi-001 can be neither moved nor shut down: opted out (attribute gpuops.opt-out)"
    )


def test_who_lends_gpus_over_the_network_is_drained_before_its_host_is_emptied() -> None:
    lending = snapshot_of(cluster(2, [desktops(1, 1, first=1, attributes={"gpuops.pool": "lab"})]))
    [refusal] = plan_of_roll(lending, vms=Displacement.POWER_OFF).rejections
    assert (
        str(refusal)
        == "esx-01: vdi-001 cannot leave the host while it runs: lends its GPUs over the network (pool lab)"
    )
    assert refusal.hint.startswith("run gpuops pool reclaim --server vdi-001 first")
    drained = snapshot_of(cluster(2, [desktops(1, 1, first=1, attributes={"gpuops.pool": ""})]))
    assert leaving(plan_of_roll(drained), "esx-01") == {"vdi-001": (Leaving.VMOTION, "esx-02")}


def test_a_vm_without_a_gpu_is_left_to_drs_where_that_moves_it() -> None:
    plain = {**desktops(1, 1, first=1), "name": "plain-{:02}", "devices": []}
    by_hand = plan_of_roll(snapshot_of(cluster(2, [plain])), "esx-01")
    assert leaving(by_hand, "esx-01") == {"plain-01": (Leaving.VMOTION, "esx-02")}
    automated = plan_of_roll(snapshot_of(cluster(2, [plain], drs="fullyAutomated")), "esx-01")
    assert leaving(automated, "esx-01") == {"plain-01": (Leaving.DRS, None)}


def test_what_ha_keeps_free_is_kept_without_the_hosts_that_are_down() -> None:
    inventory = snapshot_of(cluster(3, [desktops(1, 3, first=1), desktops(2, 3, first=4)]))
    [ref] = inventory.clusters

    def keeping(percent: int) -> Inventory:
        admission = AdmissionControl(memory_percent=percent)
        return replace(inventory, clusters={ref: replace(inventory.clusters[ref], admission=admission)})

    assert len(rounds(plan_of_roll(keeping(50), "esx-01"))) == 1
    [first, *_] = refusals(plan_of_roll(keeping(97), "esx-01"))
    assert "memory beside the" in first
    assert "MiB that HA keeps free for the failure of a host" in first


def test_suspended_with_a_vgpu_or_in_maintenance_already_is_refused_by_name() -> None:
    inventory = snapshot_of(cluster(2, [desktops(1, 1, first=1, power="suspended")]))
    assert refusals(plan_of_roll(inventory)) == ["esx-01: vdi-001 is suspended on it with a vGPU"]
    in_maintenance = inventory.with_hosts([replace(inventory.find_host("esx-02"), in_maintenance=True)])
    assert refusals(plan_of_roll(in_maintenance, "esx-02")) == ["esx-02: is in maintenance mode already"]
    unknown = inventory.with_hosts([replace(inventory.find_host("esx-02"), booted=None)])
    assert refusals(plan_of_roll(unknown, "esx-02")) == [
        "esx-02: when it last booted cannot be read, so a reboot could not be confirmed"
    ]


def test_whether_a_vm_runs_must_be_known() -> None:
    inventory = snapshot_of(cluster(2, [desktops(1, 1, first=1)]))
    [vm] = inventory.vms.values()
    assert "esx-01: whether vdi-001 runs cannot be read" in refusals(
        plan_of_roll(inventory.with_vm(replace(vm, power=None)))
    )
    off = inventory.with_vm(replace(vm, power=PowerState.OFF))
    assert leaving(plan_of_roll(off), "esx-01") == {}


def test_a_closed_window_is_refused_with_its_next_opening() -> None:
    inventory = snapshot_of(cluster(2, []))
    window = parse_window("Sat 22:00-04:00 Europe/Berlin")
    saturday = datetime(2026, 11, 7, 20, 59, tzinfo=UTC)
    assert refusals(plan_of_roll(inventory, now=saturday, window=window)) == [
        "window Sat 22:00-04:00 Europe/Berlin: is closed: it opens at 2026-11-07 22:00 CET"
    ]
    for now in (saturday.replace(hour=21), datetime(2026, 11, 8, 2, 59, tzinfo=UTC)):
        assert len(rounds(plan_of_roll(inventory, now=now, window=window))) == 2
    assert refusals(plan_of_roll(inventory, now=datetime(2026, 11, 8, 3, 0, tzinfo=UTC), window=window))


def test_what_waits_for_a_reboot_already_is_rebooted_too_and_what_waits_for_none_is_refused() -> None:
    inventory = snapshot_of(cluster(1, []))
    [ref] = inventory.hosts
    due = plan_roll(Plan(due=(ConfigureModule(ref, "a=1", "a=1"),)), Rolling(), inventory, catalog_of(inventory), START)
    assert rounds(due) == [["esx-01"]]
    change: HostStep = ConfigureModule(ref, "", "a=1")
    at_once = Plan((Wave("hosts", (change,)),))
    with pytest.raises(UsageError, match="no change of this plan waits for a reboot"):
        plan_roll(at_once, Rolling(), inventory, catalog_of(inventory), START)
    nothing = plan_roll(Plan(because=("all is so",)), Rolling(), inventory, catalog_of(inventory), START)
    assert (nothing.rounds, nothing.rejections, nothing.because) == ((), (), ("all is so",))


def test_who_may_find_no_gpu_when_he_comes_back_is_warned_of() -> None:
    """No VM where the order of the return prevents it; one VM where two pins leave it no GPU of its size."""
    large = {"devices": [{"vgpu": "nvidia_a40-24q"}]}
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    world = cluster(2, [desktops(1, 1, first=1, **pinned), desktops(1, 2, first=2, **large)], gpus=2)
    assert plan_of_roll(snapshot_of(world), "esx-01", vms=Displacement.SHUT_DOWN).warnings == ()
    inventory = snapshot_of(world)
    moved_vms = [vm for vm in inventory.vms.values() if vm.name != "vdi-001"]
    for vm in moved_vms:
        inventory = inventory.with_vm(replace(vm, extra_config=dict(pinned["extra_config"])))
    [warning] = plan_of_roll(inventory, "esx-01", vms=Displacement.SHUT_DOWN).warnings
    assert warning.startswith("esx-01: ")
    assert warning.endswith("may find no GPU when they come back")
