"""Shapes: XML made once for many objects is the XML each of them would have had alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuops.sim.core.encoder import encoder
from gpuops.sim.core.fragments import resolve, typed, value_of
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.scenario.build import build
from gpuops.sim.world import World

VERSION = "vim.version.v8_0_3_0"
PATHS = {
    "VirtualMachine": ("config.hardware.device", "config.extraConfig", "customValue", "capability"),
    "HostSystem": (
        "capability",
        "hardware.cpuInfo",
        "hardware.numaInfo",
        "hardware.pciDevice",
        "config.graphicsConfig",
        "config.sharedGpuCapabilities",
        "config.pciPassthruInfo",
        "config.product",
    ),
}


def alone(obj: ManagedObject, path: str) -> bytes:
    value, static = value_of(obj, resolve(obj.wsdl_name, path, VERSION))
    return encoder(VERSION).element("val", typed(value, static)).encode()


def shaped_values(world: World) -> Iterator[tuple[ManagedObject, str]]:
    for kind, paths in PATHS.items():
        for obj in world.by_type(kind):
            for path in paths:
                assert obj.shape(path) is not None
                yield obj, path


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["lab", "vdi", "fleet:hosts=40,vms=200"])
def test_shared_xml_is_the_own_xml(scenario: str) -> None:
    world = build(scenario)
    different = [
        f"{obj.display_name} {path}"
        for obj, path in shaped_values(world)
        if world.fragments.render(obj, path, encoder(VERSION)) != alone(obj, path)
    ]
    assert different == []


def test_alike_vms_share_one_shape() -> None:
    world = build("vdi")
    for vm in world.by_type("VirtualMachine"):
        world.fragments.render(vm, "config.hardware.device", encoder(VERSION))
    assert len(world.fragments.shapes) < 12


def test_name_with_markup_is_escaped() -> None:
    world = build("lab")
    vm = next(world.by_type("VirtualMachine"))
    vm.rename("a <b> & c")
    vm.state.files = ""  # they have its name, as after a move to another datastore
    assert b"a &lt;b&gt; &amp; c/a &lt;b&gt; &amp; c.vmdk" in world.fragments.render(
        vm, "config.hardware.device", encoder(VERSION)
    )
