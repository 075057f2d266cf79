"""The catalogue against what NVIDIA documents: totals, counts, names, memory, sources."""

from __future__ import annotations

import pytest

from gpuops.model.devices.catalog import Generation, MultiVgpu
from gpuops.model.devices.vgpu import ProfileKind, Series, Verified, parse
from tests.catalog.vendor_rules import BOARDS, CATALOG, FEWER_THAN_FIT, GEOMETRIES, PROFILES, TIME_SLICED, by_key


def test_every_gpu_and_profile_is_there() -> None:
    assert len(BOARDS) == 67
    assert len(PROFILES) == 1248
    assert sum(len(board.nameless) for board in BOARDS) == 0
    assert len({profile.name for board in BOARDS for profile in board.profiles}) == 1248


def test_equal_size_counts_are_what_fits_but_never_more_than_32() -> None:
    odd = {
        profile.short_name: profile.max_per_gpu
        for board, profile in TIME_SLICED
        if profile.max_per_gpu != min(board.framebuffer_mib // profile.framebuffer_mib, 32)
    }
    assert odd == FEWER_THAN_FIT


def test_counts_that_documents_disagree_on() -> None:
    # One printed table says 6 for H100-16C and 6144 MiB for V100DX-4C; arithmetic and name say otherwise.
    counts = {profile.short_name: profile.max_per_gpu for _, profile in PROFILES}
    assert (counts["H100-16C"], counts["H100XM-16C"]) == (5, 5)
    assert (counts["A40-1Q"], counts["L40-1Q"], counts["RTXA6000-1Q"]) == (32, 32, 32)
    v100dx = CATALOG.profile("grid_v100dx-4c")
    assert v100dx is not None
    assert v100dx.framebuffer_mib == 4096


def test_the_brand_follows_the_generation() -> None:
    for board in BOARDS:
        if board.esxi_prefix is None:
            assert board.nameless
            continue
        old = board.generation in (Generation.MAXWELL, Generation.PASCAL, Generation.VOLTA, Generation.TURING)
        grid = old or board.short_name.startswith(("A100", "A800"))
        assert board.esxi_prefix.startswith("grid_" if grid else "nvidia_"), board.key


def test_every_profile_name_parses_to_its_own_facts() -> None:
    for board in BOARDS:
        for profile in board.profiles:
            parts = parse(profile.name)
            assert parts is not None, profile.name
            assert parts.esxi_prefix == board.esxi_prefix
            assert parts.series is profile.series
            assert parts.framebuffer_mib == profile.framebuffer_mib, profile.name
            assert (parts.slices is not None) == profile.mig_backed, profile.name
            assert parts.media == (profile.mig_profile or "").endswith("+me"), profile.name
            assert profile.full_name is not None
            assert profile.name == profile.full_name.lower().replace(" ", "_")
            assert CATALOG.profile(profile.name) is profile


def test_names_seen_on_vsphere_hosts() -> None:
    verified_names = {
        profile.name for board in BOARDS for profile in board.profiles if profile.verified_name is Verified.DOC
    }
    assert {"grid_a100d-80c", "nvidia_a40-48q", "nvidia_h100xm-80c", "nvidia_h200x-1-35c"} <= verified_names
    assert "nvidia_rtx_pro_6000_blackwell_dc-4-96q" in verified_names


def test_profiles_that_the_driver_names_without_a_document_about_vsphere() -> None:
    """As g_nv_name_released.h of NVIDIA's open kernel modules 615.71.09 has them, with the ids of their boards."""
    for name, device, framebuffer_gib in (
        ("nvidia_rtx_pro_4500_blackwell_dc-2-16c", 0x2C3A, 16),
        ("nvidia_rtx_pro_4500_blackwell_dc-32q", 0x2C3A, 32),
        ("nvidia_gb200-1-23cme", 0x2941, 23),
        ("nvidia_gb200-186c", 0x2941, 186),
        ("nvidia_gb300x-7-278c", 0x31C2, 278),
        ("nvidia_a10g-24q", 0x2237, 24),
        ("nvidia_l40g-12c", 0x26B8, 12),
    ):
        profile, board = CATALOG.profile(name), CATALOG.board_by_pci(0x10DE, device)
        assert profile is not None and board is not None, name
        assert (profile.board, profile.framebuffer_mib) == (board.key, framebuffer_gib << 10)
    assert CATALOG.profile("nvidia_a10g-24c") is None, "the driver has no C types of the A10G"


def test_one_type_id_is_one_profile() -> None:
    ids = [profile.type_id for _, profile in PROFILES if profile.type_id is not None]
    assert len(ids) == len(set(ids)) > 900


@pytest.mark.parametrize(
    ("mmio_gib", "keys"),
    [
        (512, ("h20x", "h200", "h200x")),
        (256, ("h100", "h100l", "h100xm", "h100xl", "h100xs", "h800", "h800l", "h800xm", "h20", "a100d", "a100dx")),
        (128, ("a100", "a100x", "a40", "l40", "l20", "rtx6000-ada", "rtxa6000")),
        (64, ("l4", "l2", "rtx5000-ada", "a30", "a10", "rtxa5500", "rtxa5000", "rtx8000p", "rtx6000p", "v100")),
        (None, ("l40s", "rtx-pro-6000", "b200x", "b300x", "m10")),
    ],
)
def test_mmio_sizes(mmio_gib: int | None, keys: tuple[str, ...]) -> None:
    assert {board.key: board.mmio_gib for board in by_key(*keys)} == dict.fromkeys(keys, mmio_gib)


def test_boards_that_carry_several_gpus() -> None:
    assert {board.key: board.gpus_per_board for board in BOARDS if board.gpus_per_board > 1} == {
        "m10": 4,
        "m60": 2,
        "a16": 4,
    }


def test_nvlink_profiles_are_full_frame_buffer_profiles_of_their_board() -> None:
    for board in BOARDS:
        for name in (*board.nvlink_profiles, *board.nvswitch_profiles):
            profile = CATALOG.profile(name)
            assert profile is not None, name
            assert (profile.board, profile.max_per_gpu, profile.mig_backed) == (board.key, 1, False), name
            assert profile.series in (Series.C, Series.Q)
    switched = {name for board in BOARDS for name in board.nvswitch_profiles}
    assert switched == {
        *("grid_a100x-40c", "grid_a100dx-80c", "grid_a800dx-80c", "nvidia_h100xm-80c", "nvidia_h800xm-80c"),
        *("nvidia_h200x-141c", "nvidia_h20-96c", "nvidia_h20x-141c"),
    }


def test_several_vgpus_in_one_vm() -> None:
    for board, profile in TIME_SLICED:
        if profile.series in (Series.A, Series.B):
            assert profile.max_per_vm == 1, profile.short_name
        elif board.multi_vgpu is MultiVgpu.ALL:
            # The driver's limit was not seen for Grace and for boards that only the driver names.
            unknown = board.key in ("gh200", "gh200l", "gb200", "gb300x", "a10g", "l40g")
            assert profile.max_per_vm == (None if unknown else 16), profile.short_name
        elif profile.max_per_gpu > 1:
            assert profile.max_per_vm == 1, profile.short_name
        else:
            assert profile.max_per_vm is None or profile.max_per_vm > 1, profile.short_name


def test_the_half_gigabyte_types_exist_on_maxwell_only() -> None:
    assert {board.key for board, profile in PROFILES if profile.framebuffer_mib == 512} == {"m10", "m60", "m6"}


def test_the_guest_sees_no_more_than_the_profile() -> None:
    with_guest_memory = [profile for _, profile in PROFILES if profile.guest_framebuffer_mib is not None]
    assert len(with_guest_memory) == 586
    assert all((profile.guest_framebuffer_mib or 0) <= profile.framebuffer_mib for profile in with_guest_memory)
    m10 = CATALOG.profile("grid_m10-4q")
    assert m10 is not None
    assert m10.guest_framebuffer_mib == 3776


def test_ecc_belongs_to_workstation_profiles() -> None:
    for board, profile in TIME_SLICED:
        if profile.series in (Series.A, Series.B):
            assert not profile.ecc, profile.short_name
        elif profile.series is Series.Q and board.key == "m10":
            assert profile.ecc is False


def test_sizes_printed_otherwise_than_named() -> None:
    printed = {
        profile.short_name: profile.printed_framebuffer_mib
        for _, profile in PROFILES
        if profile.printed_framebuffer_mib is not None
    }
    expected = {"94C": 96246, "1-24C": 24672, "2-24C": 24672}
    assert printed == {
        f"{board}-{tail}": mib for board in ("H100L", "H100XL", "H800L") for tail, mib in expected.items()
    }


def test_computed_facts_are_marked() -> None:
    derived = [profile for _, profile in PROFILES if profile.verified is Verified.DERIVED]
    assert len(derived) == 122
    assert {family for family, geometry in GEOMETRIES.items() if geometry.verified is Verified.DOC} == {
        *("a30-24gb", "a100-40gb", "a100-80gb", "h100-80gb", "h100-94gb", "rtx-pro-6000-96gb"),
    }
    assert {profile.kind for profile in derived} == set(ProfileKind)


def test_every_board_names_its_sources() -> None:
    for board in BOARDS:
        groups = dict(board.sources)
        assert "identity" in groups
        assert ("mmio" in groups) == (board.mmio_gib is not None)
        assert ("mig" in groups) == (board.mig is not None)
        every = (*board.profiles, *board.nameless)
        assert ("guests" in groups) == any(profile.guest_framebuffer_mib is not None for profile in every)
        printed = any(profile.verified is Verified.DOC for profile in every)
        assert ("counts" in groups) == printed
