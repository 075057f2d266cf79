"""What a profile says about itself."""

from __future__ import annotations

import dataclasses

import pytest

from gpuops.model.devices.vgpu import ProfileKind, Series, VgpuProfile

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
