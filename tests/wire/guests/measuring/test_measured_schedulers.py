"""Schedulers that are set between measurements, and the first one that is set again in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuops import api
from gpuops.api import scheduler_show
from gpuops.errors import VcenterUnreachable
from gpuops.extras.sizing.measured_schedulers import SchedulersMeasured, SettingSchedulers, measure_schedulers
from gpuops.extras.sizing.measured_view import measured_text
from gpuops.extras.sizing.measuring import remove_measurement
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import MeasuredCount, SchedulerBefore, SharingMeasurement
from gpuops.model.vcenter.host_settings import Displacement, Rolling
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.report.layout import plain
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.guests.measuring.lab import BEST, EQUAL, GPU, Lab, keep, wish

pytestmark = pytest.mark.long

SHUT = SettingSchedulers(Rolling(vms=Displacement.SHUT_DOWN), lambda line: None)


def _vm(lab: Lab, name: str) -> Any:
    return next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == name)


def _after_each_change(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> list[str]:
    """What happens when the host is back; the list gets a line for each change that was applied."""
    changed, applied_verbs = api.change, list[str]()

    def change_and_happen(request: Any, verb: str, *arguments: Any, apply: bool, **options: Any) -> ChangeReport:
        report = changed(request, verb, *arguments, apply=apply, **options)
        if apply:
            applied_verbs.append(verb)
            assert len(applied_verbs) < 6, "the host is rebooted again and again"
            happens()
        return report

    monkeypatch.setattr(api, "change", change_and_happen)
    return applied_verbs


@pytest.mark.long
def test_schedulers_are_set_in_between_and_the_first_one_again(lab: Lab) -> None:
    messages: list[str] = []
    setting = SettingSchedulers(Rolling(vms=Displacement.SHUT_DOWN), messages.append)
    consents_asked: list[tuple[str, ...]] = []
    request = wish("sleep 0.2", 1, 2, schedulers=(BEST, EQUAL), sets_schedulers=True)

    def consent(planned: SchedulersMeasured) -> None:
        consents_asked.append(tuple(change.verb for change in planned.changes if change.plan.feasible))
        assert (planned.measured.plan.now, planned.measured.plan.later) == ((1, 2), (EQUAL,))

    dry_run = measure_schedulers(request, lab.site, setting, apply=False, consent=consent)
    assert (dry_run.exit_code, consents_asked, lab.kept, lab.host.state.module_options) == (0, [], None, "")
    report = measure_schedulers(request, lab.site, setting, apply=True, consent=consent)
    assert consents_asked == [("scheduler set",)]
    assert [(count.scheduler, count.sharers, count.error) for count in report.measured.measurement.done] == [
        (BEST, 1, ""),
        (BEST, 2, ""),
        (EQUAL, 1, ""),
        (EQUAL, 2, ""),
    ]
    assert (report.exit_code, len(report.changes), lab.vms(), lab.kept) == (0, 2, [], None)
    listing = scheduler_show(lab.site, Scope())
    assert {str(count.effective) for host in listing.hosts for count in host.gpus if count.note is None} == {
        "best-effort"
    }
    untouched_vms = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name in ("vm-01", "vm-02")]
    assert {vm.state.power for vm in untouched_vms} == {Power.ON}
    assert (lab.host.state.module_options, lab.host.state.loaded_module_options) == ("", ""), "no entry stays"


@pytest.mark.long
def test_a_host_that_cannot_be_emptied_is_said_before_anything_is_made(lab: Lab) -> None:
    setting = SettingSchedulers(Rolling(), lambda line: None)
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    report = measure_schedulers(request, lab.site, setting, apply=True)
    assert (report.exit_code, lab.kept, lab.vms()) == (3, None, [])
    [refused] = report.changes
    assert any("vm-01" in rejection.line for rejection in refused.plan.rejections)


@pytest.mark.long
def test_what_a_killed_call_had_changed_the_same_call_sets_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    waited = Connection.wait_for_commands
    calls: list[object] = []

    def second_time(self: Connection, *arguments: Any) -> Any:
        calls.append(arguments)
        return kill() if len(calls) == 2 else waited(self, *arguments)

    monkeypatch.setattr(Connection, "wait_for_commands", second_time)
    with pytest.raises(Killed):
        measure_schedulers(request, lab.site, SHUT, apply=True)
    monkeypatch.undo()
    assert lab.kept is not None and lab.kept.before == _before(lab)
    assert "RmPVMRL=0x01" in (lab.host.state.loaded_module_options or "")
    report = measure_schedulers(request, lab.site, SHUT, apply=True)
    assert (report.exit_code, len(report.changes), lab.vms()) == (0, 1, [])
    assert not (lab.site.state_dir / f"{lab.site.vcenter.uuid}.measure.json").exists()
    assert (lab.host.state.module_options, lab.host.state.loaded_module_options) == ("", "")


def _before(lab: Lab) -> SchedulerBefore:
    return SchedulerBefore(lab.host.moid, PciAddress.parse(GPU), VgpuScheduler(BEST), "")


def test_what_stands_in_the_way_of_schedulers_too_is_exit_code_3(lab: Lab) -> None:
    request = replace(wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True), template="vm-01")
    report = measure_schedulers(request, lab.site, SHUT, apply=True)
    assert (report.exit_code, report.changes, lab.kept) == (3, (), None)


@pytest.mark.long
def test_a_gpu_that_is_taken_after_a_reboot_ends_it_and_the_first_scheduler_is_set_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_gpu() -> None:
        other_vm = _vm(lab, "vm-02")
        with lab.server.world.lock:
            other_vm.state.seats = tuple(replace(seat, pci_id=GPU) for seat in other_vm.state.seats)
            other_vm.power_changed()

    applied_verbs = _after_each_change(monkeypatch, take_gpu)
    schedulers = (BEST, EQUAL, SchedulerPolicy.FIXED_SHARE)
    request = wish("true", schedulers=schedulers, sets_schedulers=True)
    report = measure_schedulers(request, lab.site, SHUT, apply=True)
    assert (report.exit_code, len(applied_verbs), report.undone, lab.host.state.loaded_module_options) == (4, 2, "", "")
    assert lab.kept is not None and [count.scheduler for count in lab.kept.done] == [BEST], "what was measured is kept"
    text = plain(measured_text(report.measured.plan, report.measured.measurement, ()))
    assert f"GPU {GPU}, where the measurement began, is not free for 1 VM of nvidia_a40-8q" in text
    assert "the same command continues" in text


@pytest.mark.long
def test_the_gpu_that_was_changed_is_the_one_that_is_measured_and_set_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_is_free() -> None:
        with lab.server.world.lock:
            for name in ("vm-01", "vm-02"):
                vm = _vm(lab, name)
                vm.state.power = Power.OFF
                vm.power_changed()

    applied_verbs = _after_each_change(monkeypatch, another_is_free)
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    report = measure_schedulers(request, lab.site, SHUT, apply=True)
    assert (report.exit_code, len(applied_verbs), lab.host.state.loaded_module_options) == (0, 2, "")
    gpu = report.measured.plan.gpu
    assert gpu is not None and str(gpu.address) == GPU


@pytest.mark.long
def test_what_is_set_back_and_not_in_force_takes_a_reboot_that_is_shown_first(lab: Lab) -> None:
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    counts = tuple(MeasuredCount(scheduler, 1, (1.0,)) for scheduler in (BEST, EQUAL))
    keep(lab, SharingMeasurement("0123abcd", request, 1, counts, _before(lab)))
    with lab.server.world.lock:
        lab.host.state.loaded_module_options = "NVreg_RegistryDwords=RmPVMRL=0x01"
    dry_run = measure_schedulers(request, lab.site, SHUT, apply=False)
    assert [change.plan.feasible and len(change.plan.rounds) for change in dry_run.changes] == [1]
    report = measure_schedulers(request, lab.site, SHUT, apply=True)
    assert (report.exit_code, len(report.changes), lab.host.state.loaded_module_options, lab.kept) == (0, 1, "", None)


@pytest.mark.long
@pytest.mark.parametrize("starts", ["while the admin is asked", "while it is measured"])
def test_a_vm_that_came_after_it_was_agreed_to_is_not_shut_down(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, starts: str
) -> None:
    late, moves_shown = _vm(lab, "vm-02"), list[bool]()

    def switch(power: Power) -> None:
        with lab.server.world.lock:
            late.state.power = power
            late.power_changed()

    def consent(planned: SchedulersMeasured) -> None:
        moves_shown.append("vm-02" in str(planned.changes[0].plan.planned_hosts[0].away))
        if starts == "while the admin is asked":
            switch(Power.ON)

    waited = Connection.wait_for_commands

    def started_meanwhile(self: Connection, *arguments: Any) -> Any:
        switch(Power.ON)
        return waited(self, *arguments)

    switch(Power.OFF)
    monkeypatch.setattr(Connection, "wait_for_commands", started_meanwhile)
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    report = measure_schedulers(request, lab.site, SHUT, apply=True, consent=consent)
    if starts == "while the admin is asked":
        assert (report.exit_code, moves_shown) == (0, [False, True])
    else:
        assert (report.exit_code, moves_shown, lab.host.state.module_options) == (4, [False], "")
        assert "vm-02 would be shut down now, which was not shown before" in str(report.changes[0].plan.rejections)
    assert late.state.power is Power.ON


@pytest.mark.long
def test_whoever_cuts_it_off_under_another_scheduler_is_told_how_to_set_it_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise VcenterUnreachable("it is gone")

    messages: list[str] = []
    lab.site.say = messages.append
    _after_each_change(monkeypatch, lambda: monkeypatch.setattr(Connection, "wait_for_commands", cut))
    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    with pytest.raises(VcenterUnreachable):
        measure_schedulers(request, lab.site, SHUT, apply=True)
    command = f"gpuops host scheduler set --scheduler best-effort --gpu {GPU} --host esx-01 --reboot rolling"
    assert messages[-1].endswith(f"run the same command again, which restores it at the end, or {command}")
    assert "RmPVMRL=0x01" in lab.host.state.loaded_module_options
    monkeypatch.undo()
    removed = remove_measurement(lab.site, apply=True)
    assert (lab.vms(), lab.kept) == ([], None)
    expected_reason = (
        f"the scheduler of GPU {GPU} of esx-01 was best-effort, and is equal-share: {command} sets it back"
    )
    assert removed.undone == expected_reason


@pytest.mark.long
def test_vms_that_a_killed_call_left_do_not_keep_the_host_from_being_emptied(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.server.world.lock:
        for name in ("vm-01", "vm-02"):
            vm = _vm(lab, name)
            vm.state.power, vm.state.seats = Power.OFF, ()
            vm.power_changed()

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    request = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    moving = SettingSchedulers(Rolling(), lambda line: None)
    monkeypatch.setattr(Connection, "wait_for_commands", kill)
    with pytest.raises(KeyboardInterrupt):
        measure_schedulers(request, lab.site, moving, apply=True)
    monkeypatch.undo()
    assert len(lab.vms()) == 1, "it cannot be moved"
    report = measure_schedulers(request, lab.site, moving, apply=True)
    assert (report.exit_code, len(report.changes), lab.vms(), lab.kept) == (0, 2, [], None)
