"""The map's records of a fleet with one of everything: what is free, held, not known, and what takes no vGPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuops.config.policy import parse_policy
from gpuops.execute.site import catalog_of
from gpuops.extras.web.page.fleet_map import VmRole, fleet_map, role_of
from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import VgpuDevice, Vm
from gpuops.report.document import as_values
from gpuops.report.monitoring.fleet_view import fleet

POLICY = parse_policy(
    """
version: 1
name: small
pools:
  - {name: all, parked: true, select: {folder: desktops}, idle: {cpu_below_mhz: 500}, owner: none}
ml:
  queue: [{vm: ml-01}, {vm: "train-*"}]
windows: any
""",
    "of the tests",
)


def map_fleet(inventory: Inventory) -> dict[str, Any]:
    return as_values(fleet_map(fleet(inventory, catalog_of(inventory)), None))


def by_address(fleet_map: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (host["name"].split(".")[0], gpu["address"]): gpu
        for host in fleet_map["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]
    }  # fmt: skip


def test_each_gpu_by_its_use(inventory: Inventory) -> None:
    fleet_map = map_fleet(inventory)
    gpus = by_address(fleet_map)
    use_by_gpu = {key: (gpu["use"], gpu["used"], gpu["takes_vgpus"]) for key, gpu in gpus.items()}
    assert use_by_gpu == {
        ("esx-01", "0000:3b:00.0"): ("partly", 0.5, True),
        ("esx-01", "0000:af:00.0"): ("free", 0, True),
        ("esx-01", "0000:d8:00.0"): ("full", 1.0, False),
        ("esx-02", "0000:3b:00.0"): ("unknown", None, True),
    }
    [slot] = gpus["esx-01", "0000:3b:00.0"]["slots"]
    assert slot == {"vm": "vm-1", "profile": "grid_a100-3-20c", "gpus": 0.5, "start": None, "certain": True}
    [whole] = gpus["esx-01", "0000:d8:00.0"]["slots"]
    assert (whole["vm"], whole["profile"], whole["gpus"]) == ("vm-2", None, 1.0)
    use = fleet_map["use"]
    assert (use["gpus_free"], use["gpus_partly"], use["gpus_full"], use["gpus_unknown"]) == (1, 1, 1, 1)
    assert (use["free_whole_gpus"], use["free_in_parts"], use["free_not_known_gpus"]) == (1, 0.5, 1)
    assert use["fragmented"] == pytest.approx(0.3333)


def test_a_gpu_that_serves_graphics_is_no_room_for_vgpus(inventory: Inventory) -> None:
    host = inventory.hosts["host-1"]
    graphics = {"0000:af:00.0": GraphicsType.SHARED}
    gpus = tuple(replace(gpu, graphics_type=graphics.get(str(gpu.address), gpu.graphics_type)) for gpu in host.gpus)
    fleet_map = map_fleet(inventory.with_hosts([replace(host, gpus=gpus)]))
    assert by_address(fleet_map)["esx-01", "0000:af:00.0"]["takes_vgpus"] is False
    assert fleet_map["use"]["free_whole_gpus"] == 0


def test_what_is_free_stands_once_for_all_gpus_that_are_alike(inventory: Inventory) -> None:
    fleet_map = map_fleet(inventory)
    rooms = [gpu["room"] for gpu in by_address(fleet_map).values()]
    assert sorted(set(rooms)) == list(range(len(fleet_map["rooms"])))
    assert len(fleet_map["rooms"]) == len({str(room) for room in fleet_map["rooms"]})


@pytest.mark.parametrize(
    ("name", "folder", "profiles", "role", "by_policy"),
    [
        ("vdi-1", "desktops", ("nvidia_a40-8q",), VmRole.DESKTOP, VmRole.DESKTOP),
        ("vdi-2", "desktops", ("nvidia_a40-8c",), VmRole.ML, VmRole.DESKTOP),
        ("ml-01", "ml", ("nvidia_a40-8q",), VmRole.DESKTOP, VmRole.ML),
        ("train-7", "ml", (), VmRole.OTHER, VmRole.ML),
        ("app", "apps", ("nvidia_a40-8a", "nvidia_a40-8c"), VmRole.DESKTOP, VmRole.DESKTOP),
        ("other", "apps", ("of another vendor",), VmRole.OTHER, VmRole.OTHER),
    ],
)
def test_the_role_of_a_vm(name: str, folder: str, profiles: tuple[str, ...], role: VmRole, by_policy: VmRole) -> None:
    devices = tuple(VgpuDevice(number, profile) for number, profile in enumerate(profiles))
    vm = Vm("vm-1", name, f"/dc/vm/{folder}/{name}", devices=devices)
    assert (role_of(vm, None), role_of(vm, POLICY)) == (role, by_policy)
