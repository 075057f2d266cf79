"""A night takes nothing from a GPU that is lost or requires a reset, and starts nothing on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from gpuops.model.devices.gpu import GpuHealth
from tests.execute.small_vcenter import small_world
from tests.plan.rotation.test_cases import NightCase, plan_rotation, summary_of

FIRST, SECOND = "0000:3b:00.0", "0000:4b:00.0"


def night(health: GpuHealth, sick: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """What a night does if these GPUs of esx-01 have this health, and the reason for each VM."""
    world = small_world()
    [host] = [host for host in world.hosts.values() if host.name == "esx-01"]
    gpus = (replace(gpu, health=health) if str(gpu.address) in sick else gpu for gpu in host.gpus)
    world.hosts[host.ref] = replace(host, gpus=tuple(gpus))
    plan = plan_rotation(NightCase("sick GPUs", {}), world, ())
    return summary_of(plan, world.snapshot()), {choice.subject: choice.reason for choice in plan.choices}


@pytest.mark.parametrize("health", [GpuHealth(is_lost=True), GpuHealth(requires_reset=True)])
def test_desktops_of_the_other_gpu_make_room(health: GpuHealth) -> None:
    steps, _ = night(health, [FIRST])
    assert steps["suspends"] == ["desktop-03", "desktop-04", "desktop-05"], "those on the first GPU could not resume"
    assert steps["starts"] == {"ml-01": "esx-01", "ml-02": "esx-02"}


def test_an_ml_vm_whose_gpus_are_all_sick_finds_no_place() -> None:
    steps, reasons = night(GpuHealth(is_lost=True), [FIRST, SECOND])
    assert (steps["suspends"], steps["starts"]) == ([], {"ml-02": "esx-02"})
    assert reasons["ml-01"] == f"does not fit: esx-01 {FIRST}: is lost (nvidia-smi)"


def test_a_corrupt_inforom_changes_nothing() -> None:
    assert night(GpuHealth(has_corrupt_inforom=True), [FIRST]) == night(GpuHealth(), [])
