"""VMs that are made to measure how they share a GPU: guests that really run, and GPU time that is really shared."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import Refused, UsageError
from gpuops.extras.sizing.measure_plan import MeasuredCurve, measured_curve, overheads
from gpuops.extras.sizing.measuring import remove_measurement
from gpuops.model.measurements.sharing_measurement import MeasuredDevice, MeasureWish
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.guests.measuring.gpu_time import GpuTime
from tests.wire.guests.measuring.lab import BEST, EQUAL, GPU, Lab, wish

PROGRAM = Path(__file__).with_name("gpu_time.py")


ATTEMPTS = 3
"""Real time passes: a process that takes the cores for half a second is measured too."""


def curve_of(request: MeasureWish, lab: Lab) -> MeasuredCurve:
    """Of two calls, one under best effort and one under equal share."""
    lab.set_scheduler("0x00")
    first = lab.measure(request)
    assert [(count.scheduler, count.sharers, count.error) for count in first.measurement.done] == [
        (BEST, 1, ""),
        (BEST, 2, ""),
        (BEST, 4, ""),
    ]
    assert (first.exit_code, first.plan.later, first.left, lab.vms()) == (4, (EQUAL,), (), [])
    lab.set_scheduler("0x01")
    second = lab.measure(request)
    assert (second.exit_code, second.plan.in_force, lab.vms(), lab.kept) == (0, EQUAL, [], None)
    assert len(second.measurement.done) == 6
    return measured_curve(second.measurement.done, 6, 1.0)


def is_of_the_work(curve: MeasuredCurve) -> bool:
    print(curve)
    slower = {(row.count.scheduler, row.count.sharers): row.mean or 0.0 for row in curve.rows}
    return (
        curve.busy == pytest.approx(0.5, abs=0.15)
        and all(slower[BEST, sharers] < slower[EQUAL, sharers] for sharers in (2, 4))
        and curve.worst_error is not None
        and curve.worst_error < 0.25
    )


@pytest.mark.long
def test_the_fitted_busy_share_is_that_of_the_work_and_nothing_is_left(lab: Lab) -> None:
    seats: set[str] = set()

    def on_gpu() -> list[str]:
        seats.update(seat.pci_id for vm in lab.vms() for seat in vm.state.seats)
        return [vm.name for vm in lab.vms() if vm.state.power is Power.ON]

    with GpuTime(on_gpu, lambda: "RmPVMRL=0x01" in (lab.host.state.loaded_module_options or "")) as gpu:
        request = wish(f"{sys.executable} {PROGRAM} {gpu.port} 30 30 60", 1, 2, 4, schedulers=(BEST, EQUAL))
        assert any(is_of_the_work(curve_of(request, lab)) for _ in range(ATTEMPTS))
    assert seats <= {GPU}


@pytest.mark.long
def test_a_dry_run_makes_nothing_and_keeps_nothing(lab: Lab) -> None:
    measured = lab.measure(wish("true", 1, 2), apply=False)
    assert (measured.plan.now, str(measured.plan.gpu.address if measured.plan.gpu else ""), measured.exit_code) == (
        (1, 2),
        GPU,
        0,
    )
    assert (lab.vms(), lab.kept) == ([], None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "refusal_start"),
    [
        ({"template": "vm-01"}, "vm-01: is not a template"),
        ({"counts": (1, 6, 7)}, "esx-01: a GPU holds at most 6 vGPUs of nvidia_a40-8q, --counts has 7"),
        ({"profile": "a40-12q"}, ""),
    ],
)
def test_what_stands_in_the_way_is_said_and_nothing_is_made(
    lab: Lab, change: dict[str, Any], refusal_start: str
) -> None:
    measured = lab.measure(replace(wish("true"), **change), apply=bool(refusal_start))
    assert [
        rejection.line for rejection in measured.plan.rejections if rejection.line.startswith(refusal_start)
    ] or not refusal_start
    assert (measured.exit_code, lab.vms(), lab.kept) == (3 if refusal_start else 0, [], None)


@pytest.mark.long
def test_a_gpu_with_another_vm_on_it_is_not_taken(lab: Lab) -> None:
    with lab.server.world.lock:
        lab.host.state.gpus = tuple(gpu for gpu in lab.host.state.gpus if gpu.pci_id != GPU)
    measured = lab.measure(wish("true"))
    assert any(
        "no unused GPU with room for 1 VM of nvidia_a40-8q" in rejection.line for rejection in measured.plan.rejections
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("bad_wish", "error"),
    [(wish(" "), "--guest-command is empty"), (wish("true", 0), "--counts 0"), (wish("true", 65), "65")],
)
def test_options_that_mean_nothing_are_refused(lab: Lab, bad_wish: MeasureWish, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        lab.measure(bad_wish)


@pytest.mark.long
def test_a_command_that_fails_ends_the_measurement_and_its_vms_are_removed(lab: Lab) -> None:
    measured = lab.measure(wish("echo no driver; exit 3", 1, 2))
    [failed] = measured.measurement.done
    assert failed.error.endswith("it ended with exit code 3: no driver") and failed.sharers == 1
    assert (measured.exit_code, lab.vms(), lab.kept == measured.measurement) == (4, [], True)
    with pytest.raises(Refused, match="did not end, and has other options"):
        lab.measure(wish("true"))
    removal = remove_measurement(lab.site, apply=True)
    assert (removal.vms, removal.left, lab.kept) == ((), (), None)


@pytest.mark.long
def test_what_vms_took_beside_somebody_else_says_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    other_vm = next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "vm-02")
    waited = Connection.wait_for_commands

    def comes(self: Connection, commands: Any, timeout_s: float) -> Any:
        with lab.server.world.lock:
            other_vm.state.seats = tuple(replace(seat, pci_id=GPU) for seat in other_vm.state.seats)
            other_vm.power_changed()
        return waited(self, commands, timeout_s)

    monkeypatch.setattr(Connection, "wait_for_commands", comes)
    [count] = lab.measure(wish("true")).measurement.done
    invalid = f"vm-02 shared GPU {GPU} with the measured VMs, so the result is invalid"
    assert count.error == f"{invalid}: keep other VMs off it and measure again"
    assert (count.times_s, lab.vms(), other_vm.state.power) == ((), [], Power.ON)


@pytest.mark.long
def test_staggered_vms_begin_one_after_another(lab: Lab) -> None:
    measured = lab.measure(wish("sleep 1; date +%s%N", 1, 2, overlap=0.25))
    first, second = measured.measurement.done
    assert (first.error, second.error, second.apart_s) == ("", "", 0.0)
    started = [change.at for change in lab.server.ledger if "program" in change.after]
    assert 0.7 < (started[2] - started[1]).total_seconds() < 5


@pytest.mark.long
def test_one_vm_with_a_whole_gpu_is_measured_beside_them(lab: Lab) -> None:
    measured = lab.measure(wish("sleep 0.2", 1, 2, whole=True))
    assert [(count.device, count.sharers, count.error) for count in measured.measurement.done] == [
        (MeasuredDevice.DIRECT_PATH, 1, ""),
        (MeasuredDevice.WHOLE_VGPU, 1, ""),
        (MeasuredDevice.SHARE, 1, ""),
        (MeasuredDevice.SHARE, 2, ""),
    ]
    assert [str(count) for count in measured.plan.whole] == ["DirectPath I/O, GPU 0000:d8:00.0", "nvidia_a40-48q"]
    assert (measured.exit_code, measured.plan.notes, lab.vms(), lab.kept) == (0, (), [], None)
    assert set(overheads(measured.measurement.done)) == {"whole vGPU", "best-effort"}


@pytest.mark.long
def test_without_a_free_gpu_in_directpath_the_others_are_measured(lab: Lab) -> None:
    with lab.server.world.lock:
        lab.host.state.gpus = tuple(gpu for gpu in lab.host.state.gpus if gpu.pci_id != "0000:d8:00.0")
    measured = lab.measure(wish("true", whole=True))
    assert measured.plan.notes == ("esx-01 has no free NVIDIA A40 in DirectPath I/O: that is not measured",)
    assert [count.device for count in measured.measurement.done] == [MeasuredDevice.WHOLE_VGPU, MeasuredDevice.SHARE]
    assert overheads(measured.measurement.done) == {}, "there is nothing to compare with"


@pytest.mark.long
def test_how_much_the_gpu_was_used_is_told_by_the_samples_of_that_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = Connection.wait_for_commands

    def two_minutes(self: Connection, commands: Any, timeout_s: float) -> Any:
        ends = list(waited(self, commands, timeout_s))
        with lab.server.world.lock:
            lab.server.world.clock.advance(120)
        return ends

    request = wish("true")
    [soon] = lab.measure(request).measurement.done
    assert soon.gpu_use is None, "there is no whole sample yet"
    monkeypatch.setattr(Connection, "wait_for_commands", two_minutes)
    [count] = lab.measure(request).measurement.done
    assert count.gpu_use is not None and 0.0 <= count.gpu_use <= 1.0
