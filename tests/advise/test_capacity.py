"""Free slots on one GPU, with the catalogue's real boards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import Slots, free_slots
from gpuops.catalog import load
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import (
    GpuHealth,
    GraphicsType,
    Passthrough,
    PciAddress,
    PhysicalGpu,
    RecoveryAction,
    VgpuMode,
)
from gpuops.model.devices.mig import arrangements, free_starts

CATALOG = load(everything=True)
SAME, MIXED, MIG = VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE


def gpu(key: str, mode: VgpuMode | None = SAME) -> PhysicalGpu:
    board = CATALOG.board(key)
    assert board is not None
    return PhysicalGpu(
        address=PciAddress.parse("0000:3b:00.0"),
        name=board.name,
        vendor_id=board.pci_ids[0].vendor_id,
        device_id=board.pci_ids[0].device_id,
        subsystem_id=next(iter(board.pci_ids[0].subsystem_ids), None),
        graphics_type=GraphicsType.SHARED_DIRECT,
        vgpu_mode=mode,
    )


def room(key: str, mode: VgpuMode | None, holders: list[str], profile: str) -> tuple[int, int | None]:
    slots = free_slots(gpu(key, mode), holders, profile, CATALOG)
    return slots.at_least, slots.at_most


@pytest.mark.parametrize(
    ("holders", "profile", "free"),
    [
        ([], "nvidia_a40-8q", 6),
        (["nvidia_a40-8q"] * 2, "nvidia_a40-8q", 4),
        (["nvidia_a40-8q"] * 2, "grid_a40-8q", 4),
        (["nvidia_a40-8q", "nvidia_a40-8c"], "nvidia_a40-8a", 4),
        (["nvidia_a40-8q"] * 6, "nvidia_a40-8q", 0),
        (["nvidia_a40-8q"], "nvidia_a40-4q", 0),
        (["nvidia_a40-1q"] * 31, "nvidia_a40-1b", 1),
    ],
)
def test_same_size(holders: list[str], profile: str, free: int) -> None:
    assert room("a40", SAME, holders, profile) == (free, free)


def test_the_smaller_maximum_of_two_series_of_one_size_counts() -> None:
    assert room("rtx8000", None, ["grid_rtx8000-4c"], "grid_rtx8000-4q") == (7, 7)
    assert room("rtx8000", None, ["grid_rtx8000-4q"] * 9, "grid_rtx8000-4c") == (0, 0)


def test_a_size_lock_says_both_sizes() -> None:
    slots = free_slots(gpu("a40"), ["nvidia_a40-8q"], "nvidia_a40-4q", CATALOG)
    assert slots == Slots(0, 0, "locked to vGPUs of 8192 MiB while 1 run, nvidia_a40-4q has 4096 MiB")
    assert slots.exact
    assert not slots.possible


def test_a_full_gpu_says_how_full() -> None:
    slots = free_slots(gpu("a40"), ["nvidia_a40-8q"] * 6, "nvidia_a40-8q", CATALOG)
    assert slots.because == "6 of 6 vGPUs run"


@pytest.mark.parametrize(
    ("holders", "profile", "free"),
    [
        ([], "nvidia_a40-8q", (4, 4)),
        (["nvidia_a40-8q"], "nvidia_a40-8q", (3, 3)),
        (["nvidia_a40-8q"] * 4, "nvidia_a40-8q", (0, 0)),
        # 8 GB lie at 0, 16, 24, 40: each leaves one of the two starts of 24 GB.
        (["nvidia_a40-8q"], "nvidia_a40-24q", (1, 1)),
        (["nvidia_a40-8q"] * 2, "nvidia_a40-24q", (0, 1)),
        (["nvidia_a40-48q"], "nvidia_a40-1q", (0, 0)),
    ],
)
def test_mixed_size(holders: list[str], profile: str, free: tuple[int, int]) -> None:
    assert room("a40", MIXED, holders, profile) == free


def test_mixed_size_without_published_starts_is_bounded_by_memory() -> None:
    slots = free_slots(gpu("h20", MIXED), ["nvidia_h20-48c"], "nvidia_h20-24c", CATALOG)
    assert (slots.at_least, slots.at_most) == (0, 2)
    assert slots.because == "where its vGPUs start is not known"
    assert room("h20", MIXED, [], "nvidia_h20-32c") == (0, 3)  # no count for it in the printed table


@pytest.mark.parametrize(
    ("holders", "profile", "free"),
    [
        ([], "grid_a100-3-20c", (2, 2)),
        (["grid_a100-3-20c"], "grid_a100-3-20c", (1, 1)),
        (["grid_a100-3-20c"], "grid_a100-1-5c", (3, 4)),
        (["grid_a100-3-20c"] * 2, "grid_a100-1-5c", (0, 0)),
        (["grid_a100-4-20c"], "grid_a100-3-20c", (1, 1)),
        (["grid_a100-1-5c"], "grid_a100-4-20c", (0, 1)),
        (["grid_a100-1-5c"] * 7, "grid_a100-1-5c", (0, 0)),
        ([], "grid_a100-1-5cme", (1, 1)),
        (["grid_a100-1-5cme"], "grid_a100-1-5cme", (0, 0)),
        (["grid_a100-1-5cme"], "grid_a100-1-5c", (6, 6)),
        (["grid_a100-7-40c"], "grid_a100-1-5c", (0, 0)),
    ],
)
def test_mig(holders: list[str], profile: str, free: tuple[int, int]) -> None:
    assert room("a100", MIG, holders, profile) == free


@pytest.mark.parametrize(
    ("running", "free"), [(0, (48, 48)), (2, (46, 46)), (12, (36, 36)), (13, (35, 35)), (48, (0, 0))]
)
def test_vgpus_that_share_a_gpu_instance(running: int, free: tuple[int, int]) -> None:
    name = "nvidia_rtx_pro_6000_blackwell_dc-1-2q"
    assert room("rtx-pro-6000", MIG, [name] * running, name) == free


def test_another_profile_needs_an_instance_of_its_own() -> None:
    prefix = "nvidia_rtx_pro_6000_blackwell_dc-"
    assert room("rtx-pro-6000", MIG, [f"{prefix}2-48q"], f"{prefix}1-2q") == (24, 24)
    assert room("rtx-pro-6000", MIG, [f"{prefix}4-96q"], f"{prefix}1-2q") == (0, 0)


@pytest.mark.parametrize(
    ("mode", "profile", "because"),
    [
        (SAME, "grid_a100-3-20c", "grid_a100-3-20c needs a GPU in MIG mode"),
        (MIXED, "grid_a100-3-20c", "grid_a100-3-20c needs a GPU in MIG mode"),
        (MIG, "grid_a100-20c", "grid_a100-20c is time-sliced, the GPU is in MIG mode"),
        (SAME, "nvidia_a40-8q", "nvidia_a40-8q is not a profile of NVIDIA A100 PCIe 40GB"),
    ],
)
def test_the_wrong_mode_or_model_takes_none(mode: VgpuMode, profile: str, because: str) -> None:
    assert free_slots(gpu("a100", mode), [], profile, CATALOG) == Slots(0, 0, because)


def test_a_gpu_that_serves_no_vgpus_takes_none() -> None:
    shared = replace(gpu("a40"), graphics_type=GraphicsType.SHARED)
    slots = free_slots(shared, [], "nvidia_a40-8q", CATALOG)
    assert slots == Slots(0, 0, "its graphics type is shared, vGPUs need sharedDirect")
    passed = replace(gpu("a40"), graphics_type=None, passthrough=Passthrough(capable=True, enabled=True, active=True))
    assert free_slots(passed, None, "nvidia_a40-8q", CATALOG) == Slots(0, 0, "it is in passthrough")


@pytest.mark.parametrize(
    ("health", "slots"),
    [
        (GpuHealth(is_lost=True), Slots(0, 0, "it is lost (nvidia-smi)")),
        (GpuHealth(requires_reset=True), Slots(0, 0, "it requires a reset (nvidia-smi)")),
        (GpuHealth(recovery_action=RecoveryAction.RESET), Slots(0, 0, "it requires a reset (nvidia-smi)")),
        (GpuHealth(recovery_action=RecoveryAction.REBOOT), Slots(0, 0, "it requires a reset (nvidia-smi)")),
        (GpuHealth(recovery_action=RecoveryAction.DRAIN_AND_RESET), Slots(0, 0, "it requires a reset (nvidia-smi)")),
        (GpuHealth(recovery_action=RecoveryAction.DRAIN_P2P), Slots(6, 6)),
        (GpuHealth(has_corrupt_inforom=True, error="Unknown Error", is_row_remap_pending=True), Slots(6, 6)),
        (GpuHealth(recovery_action=RecoveryAction.NONE), Slots(6, 6)),
        (None, Slots(6, 6)),
    ],
)
def test_a_gpu_that_is_lost_or_requires_a_reset_takes_none(health: GpuHealth | None, slots: Slots) -> None:
    assert free_slots(replace(gpu("a40"), health=health), [], "nvidia_a40-8q", CATALOG) == slots


@pytest.mark.parametrize(
    ("device", "holders", "profile", "because"),
    [
        (gpu("a40"), None, "nvidia_a40-8q", "which vGPUs run on it is not known"),
        (gpu("a40"), [], "nvidia_a40-7q", "nvidia_a40-7q is not in the catalogue"),
        (gpu("a40"), ["nvidia_a40-7q"], "nvidia_a40-8q", "a vGPU runs on it whose profile is not in the catalogue"),
        (replace(gpu("a40"), device_id=0x9999), [], "nvidia_a40-8q", "NVIDIA A40 is not in the catalogue"),
        (replace(gpu("a40"), graphics_type=None), [], "nvidia_a40-8q", "its graphics type is not known"),
        (gpu("a40", VgpuMode.NONE), [], "nvidia_a40-8q", "it shows no vGPU mode"),
        (
            gpu("a100", MIG),
            ["grid_a100-20c"],
            "grid_a100-3-20c",
            "a time-sliced vGPU runs on it, but it is in MIG mode",
        ),
        (
            gpu("a100", SAME),
            ["grid_a100-3-20c"],
            "grid_a100-20c",
            "a MIG-backed vGPU runs on it, but it is not in MIG mode",
        ),
        (
            gpu("a100", MIG),
            ["grid_a100-4-20c"] * 2,
            "grid_a100-1-5c",
            "the GPU instances of its 2 vGPUs cannot all be on it",
        ),
    ],
)
def test_what_is_not_known_is_not_a_number(
    device: PhysicalGpu, holders: list[str] | None, profile: str, because: str
) -> None:
    slots = free_slots(device, holders, profile, CATALOG)
    assert slots == Slots(0, None, because)
    assert slots.possible
    assert not slots.exact


def test_without_a_catalogue_nothing_is_known() -> None:
    assert free_slots(gpu("a40"), [], "nvidia_a40-8q", Catalog()).at_most is None


def test_hosts_that_do_not_tell_the_mode() -> None:
    """vSphere before 8.0 Update 3: what runs shows the mode, and a board without MIG can only be in same-size mode."""
    assert room("a40", None, [], "nvidia_a40-8q") == (6, 6)
    assert room("a100", None, ["grid_a100-20c"], "grid_a100-20c") == (1, 1)
    assert room("a100", None, ["grid_a100-20c"], "grid_a100-3-20c") == (0, 0)
    assert room("a100", None, ["grid_a100-3-20c"], "grid_a100-3-20c") == (1, 1)
    slots = free_slots(gpu("a100", None), [], "grid_a100-3-20c", CATALOG)
    assert slots == Slots(0, 2, "whether it is in MIG mode is not known")


A100 = CATALOG.board("a100")
assert A100 is not None
assert A100.mig is not None
MIG_NAMES = [profile.name for profile in A100.profiles if profile.mig_backed]
A40_NAMES = ["nvidia_a40-8q", "nvidia_a40-8c", "nvidia_a40-12q", "nvidia_a40-24c", "nvidia_a40-1b"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(MIG_NAMES), max_size=4), st.sampled_from(MIG_NAMES))
def test_on_mig_the_range_is_what_the_arrangements_leave(holders: list[str], profile: str) -> None:
    assert A100 is not None
    assert A100.mig is not None
    instances = {
        mig_profile.name: A100.mig.profile(mig_profile.mig_profile or "")
        for mig_profile in A100.profiles
        if mig_profile.mig_backed
    }
    held_instances = [instance for name in holders if (instance := instances[name])]
    instance_wanted = instances[profile]
    assert instance_wanted is not None
    # Starts of one kind do not overlap, so those free now stay free together; only the media engines run out.
    most = 1 if instance_wanted.variant.owns_media else instance_wanted.max_count
    rooms = [
        min(most, len(free_starts(instance_wanted, placed, A100.mig)))
        for placed in arrangements(held_instances, A100.mig)
    ]
    if rooms:
        assert room("a100", MIG, holders, profile) == (min(rooms), max(rooms))
    elif sum(instance.variant.owns_media for instance in held_instances) <= 1:
        assert room("a100", MIG, holders, profile) == (0, None)


@given(st.lists(st.sampled_from(A40_NAMES), max_size=8), st.sampled_from(A40_NAMES))
def test_one_more_vgpu_never_makes_more_room(holders: list[str], profile: str) -> None:
    before = free_slots(gpu("a40"), holders, profile, CATALOG)
    after = free_slots(gpu("a40"), [*holders, holders[0] if holders else profile], profile, CATALOG)
    assert before.at_most is not None
    assert after.at_most is not None
    assert after.at_most <= before.at_most


@given(st.sampled_from(A40_NAMES), st.integers(0, 32))
def test_same_size_counts_down_to_none(profile: str, running: int) -> None:
    vgpu_profile = CATALOG.profile(profile)
    assert vgpu_profile is not None
    slots = free_slots(gpu("a40"), [profile] * running, profile, CATALOG)
    assert slots.at_least == slots.at_most == max(0, vgpu_profile.max_per_gpu - running)
