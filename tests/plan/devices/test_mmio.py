"""The larger of the two published rules, for what needs any."""

from __future__ import annotations

import pytest

from gpuops.catalog import load
from gpuops.plan.devices.rules import SIZE_KEY, USE_KEY, Mmio, mmio_for, mmio_keys
from tests.plan.snapshots import FIRST, catalog, device, host, whole


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
