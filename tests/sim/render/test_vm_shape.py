"""What VMs share in the large properties is the same as what each of them would be written alone."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.sim.core.encoder import encoder
from gpuops.sim.core.fragments import resolve, typed, value_of
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.scenario.build import build
from gpuops.sim.state.vm_state import BootOptions, Power, Question, VmState
from gpuops.sim.world import World

VERSION = "vim.version.v8_0_3_0"
PATHS = (
    "config",
    "layout",
    "layoutEx",
    "storage",
    "resourceConfig",
    "value",
    "availableField",
    "guest",
    "runtime",
    "summary",
)
LATER = datetime(2026, 11, 3, 4, 5, tzinfo=UTC)
OTHER: dict[str, Any] = {
    "power": Power.SUSPENDED,
    "boot": BootOptions(delay_ms=7),
    "devices": (),
    "groups": ((1, "group"),),
    "extra_config": (("a", "<b> & c"),),
    "held": (),
    "created_at": LATER,
    "changed_at": LATER,
    "cores_per_numa_node": 3,
    "boot_time": LATER,
    "suspend_time": LATER,
    "question": Question("1", "<?>", (("a", "b"),)),
    "attributes": {101: "<other>"},
}
"""Another value of each field that is no text, number or flag."""


def different(world: World, vm: VmEntity) -> list[str]:
    """The properties of a VM that the kept shapes get wrong."""
    differing_paths = []
    for path in PATHS:
        value, static = value_of(vm, resolve("VirtualMachine", path, VERSION))
        if world.fragments.render(vm, path, encoder(VERSION)) != encoder(VERSION).fragment(typed(value, static)):
            differing_paths.append(f"{vm.name}: {path}")
    return differing_paths


def vms(world: World) -> list[VmEntity]:
    return [obj for obj in world.registry if isinstance(obj, VmEntity)]


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["lab", "vdi", "fleet:hosts=20,vms=100"])
def test_every_vm_is_written_as_it_would_be_alone(scenario: str) -> None:
    world = build(scenario)
    assert [path for vm in vms(world) for path in different(world, vm)] == []
    assert world.fragments.shapes


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", [field.name for field in fields(VmState)])
def test_a_vm_of_which_one_field_differs_is_written_as_it_is(name: str) -> None:
    world = build("lab")
    wrong = []
    for vm in vms(world):
        different(world, vm)
        value: Any = getattr(vm.state, name)
        changed_value: Any
        if isinstance(value, bool):
            changed_value = not value
        elif isinstance(value, str) and not isinstance(value, Power) and name not in ("uuid", "host", "pool", "folder"):
            changed_value = f"{value}&x"
        elif isinstance(value, int):
            changed_value = value + 1
        else:
            changed_value = OTHER.get(name, value)
        changed: dict[str, Any] = {name: changed_value}
        vm.state = replace(vm.state, **changed)
        wrong += different(world, vm)
    assert wrong == []
