"""Values from before: kept once, kept readable, restored as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.devices.settings import KEY, Baseline, kept_with, read, restore_settings, write
from gpuops.plan.placement.project import project
from tests.plan.snapshots import inventory, vm

CHANGE = VmChange(memory_locked=True, cpu_hot_add=False, cores_per_numa_node=16, extra_config={"a": "1", "b": "2"})


def plain() -> Vm:
    return replace(vm(1, "a", "1"), cpu_hot_add=True, memory_reservation_mib=512, extra_config={"a": "0"})


def change_vm(before: Vm, change: VmChange) -> Vm:
    return project(ReconfigureVm(before.ref, change), inventory([], [before])).vms[before.ref]


def test_what_is_changed_is_kept_and_comes_back() -> None:
    before = plain()
    after = change_vm(before, kept_with(before, CHANGE))
    assert read(after) == Baseline(False, 512, True, 0, {"a": "0", "b": ""})
    assert change_vm(after, restore_settings(after, memory_too=True)) == before


def test_a_second_change_adds_to_what_is_kept_and_overwrites_nothing() -> None:
    before = plain()
    once = change_vm(before, kept_with(before, CHANGE))
    twice = change_vm(once, kept_with(once, VmChange(cores_per_numa_node=4, extra_config={"a": "9", "c": "3"})))
    assert read(twice) == Baseline(False, 512, True, 0, {"a": "0", "b": "", "c": ""})
    assert change_vm(twice, restore_settings(twice, memory_too=True)) == before


def test_without_the_memory_the_reservation_stays_full() -> None:
    before = plain()
    after = change_vm(before, kept_with(before, CHANGE))
    settings_after = change_vm(after, restore_settings(after, memory_too=False))
    assert (settings_after.memory_locked, settings_after.memory_reservation_mib, settings_after.cpu_hot_add) == (
        True,
        before.memory_mib,
        True,
    )
    assert KEY not in (settings_after.extra_config or {})


def test_a_change_that_changes_nothing_keeps_nothing() -> None:
    assert kept_with(plain(), VmChange()) == VmChange()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"v":2}',
        '{"v":1,"memory_locked":"yes"}',
        '{"v":1,"extra_config":{"a":1}}',
        '{"v":1,"extra_config":[]}',
        '{"v":1,"colour":"red"}',
        '"v"',
    ],
)
def test_a_text_that_gpuops_did_not_write_is_left_alone(text: str) -> None:
    strange = replace(plain(), extra_config={KEY: text})
    assert read(strange) is None
    assert restore_settings(strange, memory_too=True) == VmChange()
    assert KEY not in kept_with(strange, CHANGE).extra_config


def test_the_text_is_the_same_for_the_same_values() -> None:
    baseline = Baseline(memory_locked=False, extra_config={"b": "", "a": "1"})
    assert write(baseline) == '{"extra_config":{"a":"1","b":""},"memory_locked":false,"v":1}'
    assert write(baseline) == write(Baseline(memory_locked=False, extra_config={"a": "1", "b": ""}))
