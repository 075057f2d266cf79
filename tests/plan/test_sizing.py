"""Which VMs `gpuops size` is about: with one time-sliced vGPU, of one GPU model, and who shares a GPU with whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.errors import ProfileUnknown, UsageError
from gpuops.extras.sizing.size_request import SizeRequest, SizingPool, known_profile, sizing_pool
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, on_gpu, vm

ON = PowerState.ON


def fleet() -> Inventory:
    """An A40 with three desktops, one of them off the list of the first; an L40S with one; a VM of two vGPUs."""
    esx = host("esx-01", gpu(FIRST, "a40"), gpu(SECOND, "l40s"))
    vms = [
        *(vm(at, f"desk-{at}", "1", "vgpu nvidia_a40-8q", power=ON, tags=frozenset({"use:office"})) for at in (1, 2)),
        vm(3, "desk-3", "1", "vgpu nvidia_a40-8q"),
        vm(4, "large-4", "1", "vgpu nvidia_a40-16q"),
        vm(5, "ada-5", "1", "vgpu nvidia_l40s-8q", power=ON),
        vm(6, "twice-6", "1", "vgpu nvidia_a40-8q", "vgpu nvidia_a40-8q"),
        vm(7, "mig-7", "1", "vgpu grid_a100-3-20c"),
        replace(vm(8, "mold-8", "1", "vgpu nvidia_a40-8q"), template=True),
        vm(9, "none-9", "1"),
    ]
    esx = on_gpu(on_gpu(esx, FIRST, vms[0].ref, vms[1].ref), SECOND, vms[4].ref)
    return inventory([esx], vms)


def pool_of(**options: str) -> SizingPool:
    return sizing_pool(SizeRequest(**options), fleet(), catalog(), None, None)  # type: ignore[arg-type]


def names(pool: SizingPool) -> list[str]:
    return [vm.name for vm in pool.vms]


def test_those_of_a_profile_and_who_is_beside_them() -> None:
    pool = pool_of(profile="a40-8q")
    assert names(pool) == ["desk-1", "desk-2", "desk-3"]
    assert (pool.slots, pool.profile and pool.profile.name) == (6, "nvidia_a40-8q")
    assert list(pool.left_out) == ["twice-6"] and "has 2 vGPUs" in pool.left_out["twice-6"]
    [together] = pool.together
    assert set(together) == {vm.ref for vm in pool.vms[:2]}


def test_those_of_a_tag_or_a_pattern() -> None:
    assert names(pool_of(tag="use:office")) == ["desk-1", "desk-2"]
    assert names(pool_of(vm="desk-*", tag="use:office")) == ["desk-1", "desk-2"]
    assert names(pool_of(vm="desk-3")) == ["desk-3"]
    two = pool_of(vm="[dl]*")
    assert (names(two), two.profile, two.slots) == (["desk-1", "desk-2", "desk-3", "large-4"], None, 3)


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"vm": "*"}, UsageError, "these VMs have vGPUs of .*A40 and .*L40S: busy shares of different GPU"),
        ({"vm": "mig-7"}, UsageError, "mig-7 has a MIG-backed vGPU, which shares no GPU time"),
        ({"vm": "none-9"}, UsageError, "no VM with a vGPU is selected"),
        ({"tag": "use:nothing"}, UsageError, "no VM with a vGPU is selected"),
        ({}, UsageError, "no option selects VMs"),
        ({"profile": "a41-8q"}, ProfileUnknown, "no host offers a vGPU profile 'a41-8q'"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, str], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        pool_of(**options)


def test_a_profile_of_any_gpu_model() -> None:
    assert known_profile("A100-40C", catalog()).name == "grid_a100-40c"
    with pytest.raises(ProfileUnknown, match=r"no GPU of the catalogue offers a vGPU profile 'zzz'$"):
        known_profile("zzz", catalog())


def test_limits_of_a_profile() -> None:
    profile = known_profile("nvidia_a40-8q", catalog())
    assert SizeRequest(sharers=6).limits(profile).slots == 6
    with pytest.raises(UsageError, match="a GPU holds 6"):
        SizeRequest(sharers=7).limits(profile)
    with pytest.raises(UsageError, match="inf is not 1 or more"):
        SizeRequest(at_most=float("inf"))
