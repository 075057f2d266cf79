"""The fleet as text and as a document: holders, free slots, and unknown values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuops.errors import HostNotFound, ProfileUnknown
from gpuops.execute.site import catalog_of
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GpuHealth
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import as_values
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import Shown
from gpuops.report.monitoring.fleet_view import Fleet, FleetFilters, fleet
from gpuops.report.monitoring.inventory_view import fleet_document, fleet_text, vms_text
from tests.document_schemas import misfits

Render = Callable[[Shown], str]
Golden = Callable[[str, str], None]


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
