"""What a return advises for a desktop that is not back: the first thing that helps, and nothing that harms others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuops.plan.core.plan import Report, Verdict
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events import host_events as vcenter_events
from gpuops.sim.outside_events import vm_events
from gpuops.sim.state.board import GpuMode
from gpuops.sim.world import World
from tests.wire.nights.test_rotation import Wire

NOT_GPUS = (
    "NoPermission",
    "NoDiskSpace",
    "FileNotFound",
    "InsufficientMemoryResourcesFault",
    "InsufficientHostMemoryCapacityFault",
    "NotEnoughLicenses",
    "LicenseServerUnavailable",
    "GenericVmConfigFault",
    "InvalidDatastore",
    "FeatureRequirementsNotMet",
)
"""Faults of a resume that no free GPU helps against."""
_NOTHING = Rule(Effect.HAPPEN)


def failures(report: Report) -> list[str]:
    return [outcome.reason for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fault", NOT_GPUS)
def test_nobody_is_asked_to_free_a_gpu_where_another_thing_is_missing(lab_wire: Wire, fault: str) -> None:
    lab_wire.night()
    lab_wire.trouble(Effect.TASK, "PowerOnVM_Task", target="vdi-09", fault=fault, times=2)
    report = lab_wire.day()
    [reason] = failures(report)
    assert report.exit_code == 4
    assert "free one" not in reason and "are held by" not in reason
    assert reason.endswith("; correct that, then gpuops rotate day")
    assert lab_wire.day().exit_code == 0


def test_where_a_gpu_is_missing_those_who_hold_the_gpus_are_named(lab_wire: Wire) -> None:
    lab_wire.night()
    fault = "InsufficientGraphicsResourcesFault"
    lab_wire.trouble(Effect.TASK, "PowerOnVM_Task", target="vdi-09", fault=fault, times=2)
    [reason] = failures(lab_wire.day())
    assert "; the GPUs of esx-02.lab are held by vdi-07, vdi-08, vdi-10: free one, then gpuops rotate day" in reason
    assert lab_wire.day().exit_code == 0


def _without_the_profile(world: World) -> None:
    for gpu in _host(world).state.gpus:
        types = tuple(type_ for type_ in gpu.board.types if type_.name != "nvidia_a40-8q")
        gpu.board = replace(gpu.board, types=types)


def _in_mixed_size(world: World) -> None:
    first, *other_gpus = _host(world).state.gpus
    first.mode = GpuMode.MIXED_SIZE
    for gpu in other_gpus:  # no other has room for a desktop
        gpu.board = replace(gpu.board, types=())


def _host(world: World) -> Any:
    return next(host for host in world.by_type("HostSystem") if host.name == "esx-02.lab")


CHANGES: dict[str, tuple[Callable[[World], None], str]] = {
    "profile": (
        _without_the_profile,
        "esx-02.lab no longer offers nvidia_a40-8q: restore its vGPU driver and its earlier GPU modes",
    ),
    "mode": (
        _in_mixed_size,
        (
            "GPU 0000:3b:00.0 of esx-02.lab is in mode mixedSize, and was in sameSize at night: set it back "
            "(in use by vdi-07, vdi-08, vdi-09, vdi-10)"
        ),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_a_host_that_changed_since_the_night_is_named_and_no_vm_is_the_cause(lab_wire: Wire, change: str) -> None:
    """Six desktops of 8 GB are on the first A40 of esx-02; in mixed-size mode it takes four."""
    world = lab_wire.server.world
    act, advice = CHANGES[change]
    with world.lock:
        for vm in world.by_type("VirtualMachine"):
            if vm.name in ("vdi-11", "vdi-12"):
                vm_events.power_on(vm, _NOTHING)
        world.clock.advance(600)
    lab_wire.night()
    with world.lock:
        act(world)
        _host(world).graphics_changed()
    report = lab_wire.day()
    reasons = failures(report)
    assert report.exit_code == 4 and reasons
    assert all(f"; {advice}, then gpuops rotate day" in reason for reason in reasons)
    assert not any("are held by" in reason for reason in reasons)


def test_a_desktop_whose_datastore_is_gone_is_told_of_the_datastore(lab_wire: Wire) -> None:
    lab_wire.night()
    world = lab_wire.server.world
    with world.lock:
        [vm] = [vm for vm in world.by_type("VirtualMachine") if vm.name == "vdi-09"]
        store = world.get(vm.state.datastore)
        vcenter_events.lose_datastore(store, _NOTHING)
    statuses = {mine.original.name: (mine.reason, mine.advice) for mine in lab_wire.status().vms}
    assert statuses["vdi-09"] == (
        f"its files cannot be reached: datastore {store.name} is not accessible",
        f"bring back datastore {store.name}, then gpuops rotate day",
    )
    with world.lock:
        vcenter_events._set_accessible(store, accessible=True)
    lab_wire.day()
