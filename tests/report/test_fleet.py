"""The fleet: what the filters leave, its summary, the inventory as text and document, and a VM for Ansible."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.errors import HostNotFound, ProfileUnknown, UsageError, VmNotFound
from gpuops.execute.site import catalog_of
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GpuHealth, Passthrough
from gpuops.model.vcenter.host import Cluster
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.report.document import as_values
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import Shown
from gpuops.report.monitoring.fleet_view import Fleet, FleetFilters, fleet
from gpuops.report.monitoring.inventory_view import fleet_document, fleet_text, summary_text, vms_text
from gpuops.report.vms.vm_view import differences, vm_state
from tests.document_schemas import misfits
from tests.plan.snapshots import without_vm

Render = Callable[[Shown], str]
Golden = Callable[[str, str], None]
FIRST, SECOND = "esx-01.example.com", "esx-02.example.com"


def fleet_of(inventory: Inventory, **filters: Any) -> Fleet:
    return fleet(inventory, catalog_of(inventory), FleetFilters(**filters))


def gpus(fleet: Fleet) -> dict[str, list[str]]:
    return {view.host.name: [str(gpu_view.gpu.address) for gpu_view in view.gpus] for view in fleet.hosts}


def vms(fleet: Fleet) -> list[str]:
    return [vm.name for vm in fleet.vms]


def test_a_cluster_by_its_name_or_id(inventory: Inventory) -> None:
    for name in ("ml", "domain-c1"):
        fleet = fleet_of(inventory, cluster=name)
        assert list(gpus(fleet)) == [FIRST]
        assert vms(fleet) == ["evil\x1b[2J\u202e", "ml-01", "train"]
        assert fleet.hosts_without_gpus == 0


def test_a_cluster_that_is_not_there_is_told_with_those_like_it(inventory: Inventory) -> None:
    with pytest.raises(UsageError, match=r"no cluster 'mll' in this vCenter; did you mean ml\?"):
        fleet_of(inventory, cluster="mll")


def test_the_gpus_that_a_vm_holds(inventory: Inventory) -> None:
    fleet = fleet_of(inventory, holder="ml-01")
    assert gpus(fleet) == {FIRST: ["0000:3b:00.0"]}
    assert fleet.hosts[0].waiting == ()
    assert vms(fleet) == ["ml-01"]
    assert gpus(fleet_of(inventory, holder="train")) == {FIRST: ["0000:d8:00.0"]}


def test_of_a_vm_that_holds_none_now_its_host_and_itself_are_shown(inventory: Inventory, plain: Render) -> None:
    fleet = fleet_of(inventory, holder="dynamic")
    assert gpus(fleet) == {SECOND: []}
    assert [vm.name for vm in fleet.hosts[0].waiting] == ["dynamic"]
    assert "└── dynamic  off  " in plain(fleet_text(fleet))


def test_of_a_vm_without_gpu_devices_there_is_nothing(inventory: Inventory) -> None:
    fleet = fleet_of(inventory, holder="plain")
    assert (gpus(fleet), vms(fleet)) == ({}, [])
    with pytest.raises(VmNotFound):
        fleet_of(inventory, holder="ml-99")


def test_filters_hold_together(inventory: Inventory) -> None:
    assert gpus(fleet_of(inventory, cluster="ml", host="esx-02")) == {}
    assert gpus(fleet_of(inventory, holder="ml-01", cluster="ml", profile="a100-3-20c")) == {FIRST: ["0000:3b:00.0"]}


class TestFree:
    """The first host has a MIG GPU with room for one more instance, one in use as a time-sliced GPU with room, and one
    in DirectPath I/O that a VM holds; the second tells nothing of room."""

    def test_gpus_with_room(self, inventory: Inventory) -> None:
        fleet = fleet_of(inventory, free=True)
        assert gpus(fleet) == {FIRST: ["0000:3b:00.0", "0000:af:00.0"]}
        assert "train" in vms(fleet)
        assert "dynamic" not in vms(fleet)
        assert [vm.name for vm in fleet.hosts[0].waiting] == ["evil\x1b[2J\u202e"]

    def test_gpus_with_room_for_a_profile(self, inventory: Inventory) -> None:
        fleet = fleet_of(inventory, free=True, profile="a100-4c")
        assert gpus(fleet) == {FIRST: ["0000:af:00.0"]}
        assert list(fleet.hosts[0].free) == ["grid_a100-4c"]

    def test_a_gpu_in_directpath_is_free_when_no_vm_holds_it(self, inventory: Inventory) -> None:
        host = inventory.hosts["host-1"]
        unheld = tuple(
            replace(gpu, vms=(), passthrough=Passthrough(True, True, True)) if gpu.passthrough else gpu
            for gpu in host.gpus
        )
        off = replace(inventory.vms["vm-2"], power=PowerState.OFF)
        without_holder = replace(inventory, hosts={"host-1": replace(host, gpus=unheld, bindings=())}).with_vm(off)
        assert gpus(fleet_of(without_holder, free=True))[FIRST][-1] == "0000:d8:00.0"
        assert "0000:d8:00.0" not in gpus(fleet_of(without_holder, free=True, profile="a100-4c"))[FIRST]


def test_a_limit_says_how_many_more_there_are(inventory: Inventory, plain: Render) -> None:
    fleet = fleet_of(inventory)
    text = plain(fleet_text(fleet, 1))
    assert FIRST in text and SECOND not in text
    assert "and 1 more host (--limit 1)\n" in text
    assert plain(vms_text(fleet, 3)).endswith("and 1 more VM (--limit 3)\n")
    assert "more" not in plain(fleet_text(fleet, 2))


def test_a_limit_holds_for_programs_too(inventory: Inventory) -> None:
    fleet = fleet_of(inventory)
    cut = json.loads(document_text(fleet_document(fleet, 1)))
    whole = json.loads(document_text(fleet_document(fleet)))
    assert (cut["hosts"], cut["vms"]) == (whole["hosts"][:1], whole["vms"][:1])
    assert (cut.pop("hosts_left_out"), cut.pop("vms_left_out")) == (1, 3)
    assert cut.keys() == whole.keys()


def test_summary(inventory: Inventory, plain: Render, golden: Golden) -> None:
    hosts = dict(inventory.hosts)
    for number in range(4):
        hosts[f"host-1{number}"] = replace(
            hosts["host-1"], ref=f"host-1{number}", name=f"esx-1{number}.example.com", connected=False, bindings=()
        )
    clusters = {**inventory.clusters, "domain-c2": Cluster("domain-c2", "evil\u202e")}
    hosts["host-13"] = replace(hosts["host-13"], cluster="domain-c2", connected=None)
    golden("summary.txt", plain(summary_text(fleet_of(replace(inventory, hosts=hosts, clusters=clusters)))))


@pytest.fixture
def catalog(inventory: Inventory) -> Catalog:
    return catalog_of(inventory)


@pytest.fixture
def whole(inventory: Inventory, catalog: Catalog) -> Fleet:
    return fleet(inventory, catalog)


def test_text(whole: Fleet, plain: Render, golden: Golden) -> None:
    golden("inventory.txt", plain(fleet_text(whole)))


def test_vms(whole: Fleet, plain: Render, golden: Golden) -> None:
    golden("vms.txt", plain(vms_text(whole)))


def test_document(whole: Fleet, golden: Golden) -> None:
    golden("inventory.json", document_text(fleet_document(whole)))


def test_a_gpu_shows_its_health(inventory: Inventory, catalog: Catalog, plain: Render) -> None:
    [sick, *_] = [host for host in inventory.hosts.values() if host.gpus]
    first, *other_gpus = sick.gpus
    health = GpuHealth(is_lost=True, has_corrupt_inforom=True)
    sick_fleet = fleet(
        inventory.with_hosts([replace(sick, gpus=(replace(first, health=health), *other_gpus))]), catalog
    )
    assert plain(fleet_text(sick_fleet)).count("  lost, infoROM corrupted") == 1
    document = fleet_document(sick_fleet)
    nodes = [node for host in document.hosts for node in host.numa_nodes]
    [lost_gpu] = [gpu for node in nodes for gpu in node.gpus if gpu.health]
    assert lost_gpu.health is not None
    assert list(lost_gpu.health.problems) == ["lost", "infoROM corrupted"]
    assert lost_gpu.health.takes_vgpus is False
    assert all(slots.at_most == 0 for slots in lost_gpu.free.values())


def test_names_cannot_move_the_cursor(whole: Fleet, plain: Render) -> None:
    for text in (plain(fleet_text(whole)), plain(vms_text(whole))):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "evil\\u{1b}[2J\\u{202e}" in text


def test_one_host(inventory: Inventory, catalog: Catalog) -> None:
    filtered = fleet(inventory, catalog, FleetFilters(host="esx-02"))
    assert [view.host.name for view in filtered.hosts] == ["esx-02.example.com"]
    assert [vm.name for vm in filtered.vms] == ["dynamic"]


def test_one_profile_by_its_short_name(inventory: Inventory, catalog: Catalog) -> None:
    filtered = fleet(inventory, catalog, FleetFilters(profile="A100-3-20C"))
    assert [view.host.name for view in filtered.hosts] == ["esx-01.example.com"]
    assert list(filtered.hosts[0].free) == ["grid_a100-3-20c"]
    assert [vm.name for vm in filtered.vms] == ["ml-01"]


def test_names_that_mean_nothing_here(inventory: Inventory, catalog: Catalog) -> None:
    with pytest.raises(HostNotFound):
        fleet(inventory, catalog, FleetFilters(host="esx-99"))
    with pytest.raises(ProfileUnknown):
        fleet(inventory, catalog, FleetFilters(profile="a40-8q"))


def test_unknown_is_not_zero(inventory: Inventory, plain: Render) -> None:
    without_catalog = fleet(inventory, Catalog())
    slots = without_catalog.hosts[0].free["grid_a100-4c"]
    assert (slots.at_least, slots.at_most) == (0, None)
    assert "free: ? grid_a100-4c, ? grid_a100-3-20c\n" in plain(fleet_text(without_catalog))
    [host, *_] = fleet_document(without_catalog).hosts
    figures = as_values(host.numa_nodes[0].gpus[0].free["grid_a100-4c"])
    assert figures["at_most"] is None
    assert "not in the catalogue" in figures["because"]
    assert misfits(fleet_document(without_catalog)) == []


def test_who_holds_a_gpu_is_unknown_when_the_host_does_not_tell(inventory: Inventory, catalog: Catalog) -> None:
    filtered = fleet(inventory, catalog, FleetFilters(host="esx-02"))
    assert filtered.hosts[0].gpus[0].holders is None


VM = Vm(
    "vm-1",
    "ml-01",
    power=PowerState.OFF,
    devices=(),
    extra_config={"guestinfo.userdata": "secret", "pciPassthru.use64bitMMIO": "TRUE", "gpuops.baseline": ""},
    attributes={"gpuops.role": "ml", "gpuops.rotation": ""},
)
BEFORE = Inventory("vc", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), vms={VM.ref: VM, "vm-2": Vm("vm-2", "other")})


def test_settings_that_are_not_ours_are_left_out() -> None:
    state = vm_state(VM, BEFORE)
    assert state["settings"] == {"pciPassthru.use64bitMMIO": "TRUE"}
    assert state["attributes"] == {"gpuops.role": "ml"}
    assert "secret" not in str(state)


def test_unknown_is_not_none_nor_zero() -> None:
    state = vm_state(Vm("vm-2", "other"), BEFORE)
    unknown = ("power", "devices", "profiles", "settings", "all_memory_reserved", "memory_mib", "host")
    assert [state[key] for key in unknown] == [None] * len(unknown)


def test_only_what_differs_is_told() -> None:
    after = BEFORE.with_vm(replace(VM, devices=(VgpuDevice(13000, "grid_a100-3-20c"),)))
    (difference,) = differences(["vm-1", "vm-2", "vm-1"], BEFORE, after)
    assert difference["before_header"] == "ml-01"
    assert difference["before"] == {"devices": [], "profiles": []}
    assert difference["after"] == {"devices": ["vGPU grid_a100-3-20c"], "profiles": ["grid_a100-3-20c"]}


def test_the_key_under_which_vcenter_lists_a_device_is_nobodys_to_foresee() -> None:
    at_first_key, at_second_key = (
        BEFORE.with_vm(replace(VM, devices=(VgpuDevice(key, "grid_a100-3-20c"),))) for key in (13000, 13001)
    )
    assert differences(["vm-1"], at_first_key, at_second_key) == []


def test_a_vm_that_is_gone_has_nothing_after() -> None:
    (difference,) = differences(["vm-1"], BEFORE, without_vm("vm-1", BEFORE))
    assert set(difference["after"].values()) == {None}
