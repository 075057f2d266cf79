"""Settings of a VM with GPUs: values from before are kept once and restored, and MMIO by the larger published rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.catalog import load
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.devices.rules import SIZE_KEY, USE_KEY, Mmio, mmio_for, mmio_keys
from gpuops.plan.devices.settings import KEY, Baseline, read, restore_settings, with_baseline, write
from gpuops.plan.placement.project import project
from tests.plan.snapshots import FIRST, catalog, device, host, inventory, vm, whole

CHANGE = VmChange(memory_locked=True, cpu_hot_add=False, cores_per_numa_node=16, extra_config={"a": "1", "b": "2"})


def plain() -> Vm:
    return replace(vm(1, "a", "1"), cpu_hot_add=True, memory_reservation_mib=512, extra_config={"a": "0"})


def change_vm(before: Vm, change: VmChange) -> Vm:
    return project(ReconfigureVm(before.ref, change), inventory([], [before])).vms[before.ref]


def test_what_is_changed_is_kept_and_comes_back() -> None:
    before = plain()
    after = change_vm(before, with_baseline(before, CHANGE))
    assert read(after) == Baseline(False, 512, True, 0, {"a": "0", "b": ""})
    assert change_vm(after, restore_settings(after, memory_too=True)) == before


def test_a_second_change_adds_to_what_is_kept_and_overwrites_nothing() -> None:
    before = plain()
    once = change_vm(before, with_baseline(before, CHANGE))
    twice = change_vm(once, with_baseline(once, VmChange(cores_per_numa_node=4, extra_config={"a": "9", "c": "3"})))
    assert read(twice) == Baseline(False, 512, True, 0, {"a": "0", "b": "", "c": ""})
    assert change_vm(twice, restore_settings(twice, memory_too=True)) == before


def test_without_the_memory_the_reservation_stays_full() -> None:
    before = plain()
    after = change_vm(before, with_baseline(before, CHANGE))
    settings_after = change_vm(after, restore_settings(after, memory_too=False))
    assert (settings_after.memory_locked, settings_after.memory_reservation_mib, settings_after.cpu_hot_add) == (
        True,
        before.memory_mib,
        True,
    )
    assert KEY not in (settings_after.extra_config or {})


def test_a_change_that_changes_nothing_keeps_nothing() -> None:
    assert with_baseline(plain(), VmChange()) == VmChange()


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
    assert KEY not in with_baseline(strange, CHANGE).extra_config


def test_the_text_is_the_same_for_the_same_values() -> None:
    baseline = Baseline(memory_locked=False, extra_config={"b": "", "a": "1"})
    assert write(baseline) == '{"extra_config":{"a":"1","b":""},"memory_locked":false,"v":1}'
    assert write(baseline) == write(Baseline(memory_locked=False, extra_config={"a": "1", "b": ""}))


@pytest.mark.parametrize(
    ("devices", "size_gib"),
    [
        (["vgpu grid_a100-3-20c"], 128),
        (["vgpu grid_a100-40c"], 128),
        (["vgpu grid_a100d-80c"], 256),
        (["vgpu grid_a100d-80c"] * 2, 512),
        (["vgpu grid_a100d-80c"] * 8, 2048),
        (["vgpu nvidia_h200-141c"], 512),
        (["vgpu nvidia_l40s-48c"], 128),  # not in NVIDIA's table: by memory alone
        (["vgpu nvidia_a40-8q", "vgpu nvidia_a40-2b", "vgpu nvidia_a40-4a"], 0),
        (["vgpu grid_t4-16c"], 0),
        ([], 0),
    ],
)
def test_vgpus(devices: list[str], size_gib: int) -> None:
    vm_devices = [device(text, 13000 + number) for number, text in enumerate(devices)]
    assert mmio_for(vm_devices, None, catalog()) == Mmio(size_gib)


@pytest.mark.parametrize(("board", "size_gib"), [("a100", 128), ("a30", 64), ("t4", 0), ("h100", 256)])
def test_whole_gpus(board: str, size_gib: int) -> None:
    gpu = whole(FIRST, board)
    passed_through = device(f"directpath {FIRST} {gpu.vendor_id:04x}:{gpu.device_id:04x}", 13000)
    assert mmio_for([passed_through], host("esx-1", gpu), catalog()).size_gib == size_gib


@pytest.mark.parametrize(
    ("device_id", "size_gib"),
    [
        (0x20B3, 128), (0x20BD, 128), (0x27B1, 64), (0x2BB1, 256), (0x2BB4, 256), (0x2BB3, 256), (0x2C31, 64),
        (0x2C33, 64), (0x2C34, 64), (0x2D30, 32), (0x2941, 512), (0x31C2, 1024), (0x2237, 64), (0x26B8, 64),
    ],
)  # fmt: skip
def test_gpus_for_directpath_io_that_only_the_driver_names(device_id: int, size_gib: int) -> None:
    """Twice the memory, rounded up to a power of two, although the host tells no memory of the GPU."""
    dynamic = device(f"dynamic 10de:{device_id:04x}", 13000)
    driver_catalog = load(pci=[(0x10DE, device_id, None)])
    assert mmio_for([dynamic], None, driver_catalog) == Mmio(size_gib)


def test_a_known_gpu_whose_memory_is_not_known_is_named() -> None:
    dynamic, h20_nvl16 = device("dynamic 10de:230e", 13000), load(pci=[(0x10DE, 0x230E, None)])
    assert [known_device.name for known_device in h20_nvl16.devices] == ["NVIDIA H20 NVL16"]
    assert mmio_for([dynamic], None, h20_nvl16) == Mmio(0, ("dynamic 10de:230e",))


def test_a_gpu_that_is_not_known_is_named() -> None:
    dynamic = device("dynamic 10de:ffff", 13000)
    assert mmio_for([dynamic], None, catalog()) == Mmio(0, ("dynamic 10de:ffff",))


@pytest.mark.parametrize(
    ("present", "keys"),
    [
        ({}, {USE_KEY: "TRUE", SIZE_KEY: "128"}),
        ({USE_KEY: "true", SIZE_KEY: "64"}, {SIZE_KEY: "128"}),
        ({USE_KEY: "TRUE", SIZE_KEY: "128"}, {}),
        ({USE_KEY: "TRUE", SIZE_KEY: "256"}, {}),
        ({USE_KEY: "FALSE", SIZE_KEY: "256"}, {USE_KEY: "TRUE"}),
        ({SIZE_KEY: "many"}, {USE_KEY: "TRUE", SIZE_KEY: "128"}),
    ],
)
def test_more_than_enough_is_kept(present: dict[str, str], keys: dict[str, str]) -> None:
    assert mmio_keys(Mmio(128), present) == keys


def test_nothing_is_written_where_none_is_needed() -> None:
    assert mmio_keys(Mmio(0), {}) == {}
