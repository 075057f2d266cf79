"""Look-ups in a catalogue of boards written out here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.devices.catalog import Board, Catalog, Generation, MultiVgpu, PciId
from gpuops.model.devices.vgpu import ProfileKind, Series, Verified, VgpuProfile

NVIDIA = 0x10DE


def board(key: str, prefix: str, *pci_ids: PciId) -> Board:
    profile = VgpuProfile(
        name=f"{prefix}8q",
        short_name=f"{key}-8Q",
        full_name=None,
        board=key,
        series=Series.Q,
        kind=ProfileKind.TIME_SLICED,
        framebuffer_mib=8192,
        max_per_gpu=2,
    )
    return Board(
        key=key,
        name=key.upper(),
        short_name=key.upper(),
        generation=Generation.AMPERE,
        esxi_prefix=prefix,
        pci_ids=pci_ids,
        framebuffer_mib=16384,
        gpus_per_board=1,
        sriov=True,
        mixed_size_mode=True,
        mixed_size_rule=None,
        multi_vgpu=MultiVgpu.ALL,
        mig=None,
        mmio_gib=None,
        nvlink_profiles=(),
        nvswitch_profiles=(),
        verified=Verified.DOC,
        sources=(),
        profiles=(profile,),
        nameless=(replace(profile, name="", short_name=f"{key}-4Q"),),
    )


A16 = board("a16", "nvidia_a16-", PciId(0x25B6, (0x14A9,), shared=True))
A2 = board("a2", "nvidia_a2-", PciId(0x25B6, (0x157E, 0x159D), shared=True))
A40 = board("a40", "nvidia_a40-", PciId(0x2235, (0x145A,)), PciId(0x2239, marketed_as="A40 twin"))
CATALOG = Catalog((A16, A2, A40))


@pytest.mark.parametrize("name", ["nvidia_a40-8q", "NVIDIA_A40-8Q", "grid_a40-8q"])
def test_a_profile_is_found_in_any_case_and_under_either_brand(name: str) -> None:
    profile = CATALOG.profile(name)
    assert profile is not None
    assert profile.name == "nvidia_a40-8q"
    assert CATALOG.board_of(name) is A40


@pytest.mark.parametrize("name", ["nvidia_a40-9q", "a40-8q", "", "a40-4Q"])
def test_other_names_are_not_in_the_catalogue(name: str) -> None:
    assert CATALOG.profile(name) is None
    assert CATALOG.board_of(name) is None


@pytest.mark.parametrize(
    ("device", "subsystem", "expected"),
    [
        (0x25B6, 0x14A9, A16),
        (0x25B6, 0x157E, A2),
        (0x25B6, 0x159D, A2),
        (0x25B6, None, None),
        (0x25B6, 0x9999, None),
        (0x2235, 0x145A, A40),
        (0x2235, 0x9999, A40),  # a card maker's own subsystem id
        (0x2235, None, A40),
        (0x2239, None, A40),
        (0x1234, None, None),
    ],
)
def test_a_board_is_found_by_pci_id(device: int, subsystem: int | None, expected: Board | None) -> None:
    assert CATALOG.board_by_pci(NVIDIA, device, subsystem) is expected


def test_twins_are_not_mistaken_for_each_other_when_one_is_missing() -> None:
    assert Catalog((A16,)).board_by_pci(NVIDIA, 0x25B6) is None
    assert Catalog((A16,)).board_by_pci(NVIDIA, 0x25B6, 0x157E) is None


def test_another_vendors_device_is_no_board() -> None:
    assert CATALOG.board_by_pci(0x1002, 0x2235) is None


def test_a_board_is_found_by_key() -> None:
    assert CATALOG.board("a2") is A2
    assert CATALOG.board("a3") is None


def test_an_empty_catalogue_answers() -> None:
    assert Catalog().profile("nvidia_a40-8q") is None
    assert Catalog().board_by_pci(NVIDIA, 0x2235) is None
