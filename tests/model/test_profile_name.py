"""Names: of profiles as people type them and hosts offer them, and of objects as vCenter writes them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.errors import ProfileAmbiguous, ProfileUnknown
from gpuops.model.devices.vgpu import ProfileKind, ProfileName, Series, VgpuProfile, parse, resolve
from gpuops.model.vcenter.inventory import decode_name, encode_name

OFFERED = (
    "grid_a100-3-20c",
    "grid_a100-1-5cme",
    "grid_a100-40c",
    "nvidia_a40-8q",
    "nvidia_rtx_pro_6000_blackwell_dc-4-96q",
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100-3-20c", "grid_a100-3-20c"),
        ("A100-3-20C", "grid_a100-3-20c"),
        ("grid_a100-3-20c", "grid_a100-3-20c"),
        ("GRID A100-3-20C", "grid_a100-3-20c"),
        (" GRID  A100-3-20C ", "grid_a100-3-20c"),
        ("NVIDIA A40-8Q", "nvidia_a40-8q"),
        ("grid_a40-8q", "nvidia_a40-8q"),  # what an older host would have called it
        ("NVIDIA RTX Pro 6000 Blackwell DC-4-96Q", "nvidia_rtx_pro_6000_blackwell_dc-4-96q"),
        ("rtx_pro_6000_blackwell_dc-4-96q", "nvidia_rtx_pro_6000_blackwell_dc-4-96q"),
    ],
)
def test_the_ways_people_write_a_profile(text: str, name: str) -> None:
    assert resolve(text, OFFERED) == name


def test_both_brands_offered_is_ambiguous_without_a_brand() -> None:
    both_brands = ("grid_a40-8q", "nvidia_a40-8q")
    with pytest.raises(ProfileAmbiguous) as caught:
        resolve("a40-8q", both_brands)
    assert "grid_a40-8q, nvidia_a40-8q" in caught.value.message
    assert caught.value.exit_code == 2
    assert [resolve(text, both_brands) for text in ("GRID A40-8Q", "nvidia_a40-8q")] == list(both_brands)


def test_a_name_is_returned_as_the_host_spells_it() -> None:
    assert resolve("a40-8q", ["NVIDIA_A40-8Q"]) == "NVIDIA_A40-8Q"


def test_an_unknown_profile_names_near_ones_that_are_offered() -> None:
    with pytest.raises(ProfileUnknown) as caught:
        resolve("a100-3-21c", OFFERED)
    assert caught.value.exit_code == 2
    assert "'a100-3-21c'" in caught.value.message
    assert "grid_a100-3-20c" in caught.value.message
    assert "a40" not in caught.value.message


def test_nothing_near_is_claimed_when_nothing_is_offered() -> None:
    with pytest.raises(ProfileUnknown) as caught:
        resolve("a100-3-20c", ())
    assert "near" not in caught.value.message


@given(st.sampled_from(OFFERED), st.booleans(), st.booleans(), st.booleans())
def test_no_spelling_of_an_offered_name_is_lost(name: str, upper: bool, blanks: bool, branded: bool) -> None:
    text = name if branded else name.partition("_")[2]
    text = text.replace("_", " ") if blanks else text
    assert resolve(text.upper() if upper else text, OFFERED) == name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("grid_a100-3-20c", ProfileName("grid", "a100", 3, 20, Series.C, False)),
        ("grid_a100-1-5cme", ProfileName("grid", "a100", 1, 5, Series.C, True)),
        ("nvidia_rtx6000-ada-48q", ProfileName("nvidia", "rtx6000-ada", None, 48, Series.Q, False)),
        ("GRID_M10-2B4", ProfileName("grid", "m10", None, 2, Series.B, False)),
        ("nvidia_h20-4c", ProfileName("nvidia", "h20", None, 4, Series.C, False)),
    ],
)
def test_the_parts_of_a_name(name: str, parts: ProfileName) -> None:
    assert parse(name) == parts


def test_half_a_gigabyte_is_written_zero() -> None:
    parts = parse("grid_m10-0b")
    assert parts is not None
    assert (parts.framebuffer_mib, parts.esxi_prefix) == (512, "grid_m10-")


@pytest.mark.parametrize("name", ["", "DC-32Q", "a100-3-20c", "nvidia_rtx_a10g-24", "amd_mi300-4c", "grid_a100-3-20x"])
def test_other_forms_have_no_parts(name: str) -> None:
    assert parse(name) is None


TIME_SLICED = VgpuProfile(
    name="nvidia_a40-8q",
    short_name="A40-8Q",
    full_name="NVIDIA A40-8Q",
    board="a40",
    series=Series.Q,
    kind=ProfileKind.TIME_SLICED,
    framebuffer_mib=8192,
    max_per_gpu=6,
)


def test_a_profile_without_a_name_in_vcenter_cannot_be_attached() -> None:
    assert TIME_SLICED.attachable
    assert not dataclasses.replace(TIME_SLICED, name="").attachable


def test_only_the_kind_decides_whether_mig_backs_it() -> None:
    assert not TIME_SLICED.mig_backed
    assert dataclasses.replace(TIME_SLICED, kind=ProfileKind.MIG_BACKED).mig_backed


def test_a_profile_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TIME_SLICED.max_per_gpu = 7  # type: ignore[misc]
    assert hash(TIME_SLICED) == hash(dataclasses.replace(TIME_SLICED))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("train%2fbert", "train/bert"),
        ("train%2Fbert", "train/bert"),
        ("a%5cb%5Cc", "a\\b\\c"),
        ("100%25", "100%"),
        ("100%252f", "100%2f"),
        ("50% of %20", "50% of %20"),  # other characters are not escaped
        ("vdi-01", "vdi-01"),
    ],
)
def test_a_name_is_decoded_once(written: str, name: str) -> None:
    assert decode_name(written) == name


@given(st.text(alphabet="%/\\25fc aé"))
def test_an_encoded_name_is_decoded_to_itself(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    assert not {"/", "\\"} & set(encode_name(name))
