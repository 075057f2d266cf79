"""Which part of a fleet the filters leave, and its summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuops.errors import UsageError, VmNotFound
from gpuops.execute.site import catalog_of
from gpuops.model.devices.gpu import Passthrough
from gpuops.model.vcenter.host import Cluster
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import Shown
from gpuops.report.monitoring.fleet_view import Fleet, FleetFilters, fleet
from gpuops.report.monitoring.inventory_view import fleet_document, fleet_text, summary_text, vms_text

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
