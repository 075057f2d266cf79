"""VMs that are made to measure how they share a GPU: guests that really run, and GPU time that is really shared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops import api
from gpuops.advise.sizing.measured import measured_curve, overheads
from gpuops.api import Site, scheduler_show
from gpuops.api.measured_schedulers import SettingSchedulers, measure_schedulers
from gpuops.api.measuring import SharingMeasured, measure, remove_measurement
from gpuops.clock import wall_clock
from gpuops.errors import Refused, UsageError, VcenterUnreachable
from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import (
    PREFIX,
    MeasuredCount,
    MeasuredDevice,
    MeasureWish,
    SchedulerBefore,
    SharingMeasurement,
)
from gpuops.model.vcenter.host_settings import Displacement, Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.plan.capacity.measure import MeasurePlan
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.change.report import ChangeReport
from gpuops.report.advice.measured import measured_text
from gpuops.report.layout import plain
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.guests.gpu_time import GpuTime

SCENARIO = str(Path(__file__).parents[2] / "sim" / "guests" / "real_guests.yaml")
PROGRAM = Path(__file__).with_name("gpu_time.py")
GPU = "0000:5e:00.0"
NOT_MADE = "{} is not the VM that was made: it is left as it is"
BEST, EQUAL = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE


@dataclass
class Lab:
    """A host with a free A40, and a site that reaches it."""

    server: SimServer
    site: Site

    def measure(self, wish: MeasureWish, *, apply: bool = True) -> SharingMeasured:
        asked: list[MeasurePlan] = []
        found = measure(wish, self.site, apply=apply, consent=asked.append)
        assert len(asked) == (1 if apply and not found.plan.rejections else 0)
        return found

    def vms(self) -> list[Any]:
        with self.server.world.lock:
            return [vm for vm in self.server.world.by_type("VirtualMachine") if vm.name.startswith(PREFIX)]

    @property
    def host(self) -> Any:
        [found] = self.server.world.by_type("HostSystem")
        return found

    def set_scheduler(self, word: str) -> None:
        """As it is after a change and a reboot."""
        options = f"NVreg_RegistryDwords=RmPVMRL={word}"
        with self.server.world.lock:
            self.host.state.module_options = self.host.state.loaded_module_options = options

    @property
    def kept(self) -> SharingMeasurement | None:
        return load_measurement(self.site.state_dir, self.site.vcenter.uuid)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with (
        start(SCENARIO, clock="virtual") as server,
        Connection(replace(target_of(server), guest=GuestLogin("ml", Secret("Kept4now")))) as connection,
    ):
        yield Lab(server, Site(connection, tmp_path / "state", wall_clock))
        assert server.world.bugs == []


def wish(command: str, *counts: int, **others: Any) -> MeasureWish:
    return MeasureWish("golden", "a40-8q", command, counts or (1,), **others)


@pytest.mark.long
def test_the_fitted_busy_share_is_that_of_the_work_and_nothing_is_left(lab: Lab) -> None:
    seats: set[str] = set()

    def on_gpu() -> list[str]:
        seats.update(seat.pci_id for vm in lab.vms() for seat in vm.state.seats)
        return [vm.name for vm in lab.vms() if vm.state.power is Power.ON]

    with GpuTime(on_gpu, lambda: "RmPVMRL=0x01" in (lab.host.state.loaded_module_options or "")) as gpu:
        command = f"{sys.executable} {PROGRAM} {gpu.port} 30 30 60"
        wanted = wish(command, 1, 2, 4, schedulers=(BEST, EQUAL))
        first = lab.measure(wanted)
        assert [(each.scheduler, each.sharers, each.error) for each in first.measurement.done] == [
            (BEST, 1, ""),
            (BEST, 2, ""),
            (BEST, 4, ""),
        ]
        assert (first.exit_code, first.plan.later, first.left, lab.vms()) == (4, (EQUAL,), (), [])
        lab.set_scheduler("0x01")
        second = lab.measure(wanted)
    assert (second.exit_code, second.plan.in_force, lab.vms(), lab.kept) == (0, EQUAL, [], None)
    assert seats <= {GPU}
    assert len(second.measurement.done) == 6
    curve = measured_curve(second.measurement.done, 6, 1.0)
    assert curve.busy == pytest.approx(0.5, abs=0.15)
    slower = {(row.count.scheduler, row.count.sharers): row.mean or 0.0 for row in curve.rows}
    assert slower[BEST, 2] < slower[EQUAL, 2] and slower[BEST, 4] < slower[EQUAL, 4]
    assert curve.worst_error is not None and curve.worst_error < 0.25


def test_a_dry_run_makes_nothing_and_keeps_nothing(lab: Lab) -> None:
    found = lab.measure(wish("true", 1, 2), apply=False)
    assert (found.plan.now, str(found.plan.gpu.address if found.plan.gpu else ""), found.exit_code) == ((1, 2), GPU, 0)
    assert (lab.vms(), lab.kept) == ([], None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"template": "vm-01"}, "vm-01: is no template"),
        ({"counts": (1, 6, 7)}, "esx-01: a GPU holds 6 vGPUs of nvidia_a40-8q, 7 are to share one"),
        ({"profile": "a40-12q"}, ""),
    ],
)
def test_what_stands_in_the_way_is_said_and_nothing_is_made(lab: Lab, change: dict[str, Any], said: str) -> None:
    found = lab.measure(replace(wish("true"), **change), apply=bool(said))
    assert [each.line for each in found.plan.rejections if each.line.startswith(said)] or not said
    assert (found.exit_code, lab.vms(), lab.kept) == (3 if said else 0, [], None)


def test_a_gpu_with_another_vm_on_it_is_not_taken(lab: Lab) -> None:
    with lab.server.world.lock:
        lab.host.state.gpus = tuple(gpu for gpu in lab.host.state.gpus if gpu.pci_id != GPU)
    found = lab.measure(wish("true"))
    assert any("no GPU for 1 VMs of nvidia_a40-8q on which nothing runs" in each.line for each in found.plan.rejections)


@pytest.mark.parametrize(
    ("wanted", "error"), [(wish(" "), "nothing to run"), (wish("true", 0), "--counts 0"), (wish("true", 65), "65")]
)
def test_options_that_mean_nothing_are_refused(lab: Lab, wanted: MeasureWish, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        lab.measure(wanted)


def test_a_command_that_fails_ends_the_measurement_and_its_vms_are_removed(lab: Lab) -> None:
    found = lab.measure(wish("echo no driver; exit 3", 1, 2))
    [failed] = found.measurement.done
    assert failed.error.endswith("it ended with exit code 3: no driver") and failed.sharers == 1
    assert (found.exit_code, lab.vms(), lab.kept == found.measurement) == (4, [], True)
    with pytest.raises(Refused, match="did not end, and has other options"):
        lab.measure(wish("true"))
    left = remove_measurement(lab.site, apply=True)
    assert (left.vms, left.left, lab.kept) == ((), (), None)


def test_a_measurement_that_was_cut_off_goes_on_with_its_vms(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Connection, "wait_for_commands", killed)
    with pytest.raises(Killed):
        lab.measure(wish("true", 1, 2))
    monkeypatch.undo()
    [before] = lab.vms()
    assert before.state.extra_config and lab.kept is not None and lab.kept.marker in before.state.annotation
    looked = remove_measurement(lab.site, apply=False)
    assert looked.vms == (before.name,)
    found = lab.measure(wish("true", 1, 2))
    assert [each.sharers for each in found.measurement.done] == [1, 2]
    assert found.measurement.id in before.name and found.exit_code == 0 and lab.vms() == []
    assert not (lab.site.state_dir / f"{lab.site.vcenter.uuid}.measure.json").exists()


def test_a_vm_that_only_has_such_a_name_is_neither_used_nor_removed(lab: Lab) -> None:
    known = SharingMeasurement("0123abcd", wish("true"), made=1)
    _keep(lab, known)
    other = _renamed(lab, "vm-02", known.name(1))
    seats = other.state.seats
    found = lab.measure(known.wish)
    assert [each.error for each in found.measurement.done] == [NOT_MADE.format(known.name(1))]
    assert found.left == (f"{known.name(1)}: {NOT_MADE.format(known.name(1))}",)
    left = remove_measurement(lab.site, apply=True)
    assert left.left == found.left
    assert (other.state.power, other.state.seats, lab.kept) == (Power.ON, seats, found.measurement)
    assert not any("program" in entry.after for entry in lab.server.ledger)


def test_a_clone_that_somebody_made_of_its_vm_is_not_removed(lab: Lab) -> None:
    known = SharingMeasurement("0123abcd", wish("true"), made=1)
    _keep(lab, known)
    other = _renamed(lab, "vm-02", f"{known.name(1)}-copy", known.marker)
    left = remove_measurement(lab.site, apply=True)
    assert (left.vms, left.left, lab.kept) == ((), (), None)
    assert other in lab.vms() and other.state.power is Power.ON


def _renamed(lab: Lab, name: str, to: str, notes: str = "") -> Any:
    other = next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == name)
    with lab.server.world.lock:
        other.state.rename(to)
        other.name = to
        other.state.annotation = notes
        other.configuration_changed(renamed=True)
    return other


@pytest.mark.parametrize("ask", ["measure", "remove"])
def test_what_another_call_has_begun_meanwhile_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    other = SharingMeasurement("0123abcd", wish("true"), made=1)
    if ask == "measure":
        with pytest.raises(Refused, match="another call has measured in this vCenter meanwhile"):
            measure(wish("true"), lab.site, apply=True, consent=lambda plan: _keep(lab, other))
    else:
        _keep(lab, SharingMeasurement("4567cdef", wish("true"), made=1))
        looked = Connection.inventory

        def meanwhile(self: Connection) -> Inventory:
            _keep(lab, other)
            return looked(self)

        monkeypatch.setattr(Connection, "inventory", meanwhile)
        with pytest.raises(Refused, match="another call has measured in this vCenter meanwhile"):
            remove_measurement(lab.site, apply=True)
    assert (lab.kept, lab.vms()) == (other, [])


def _keep(lab: Lab, measurement: SharingMeasurement) -> None:
    keep_measurement(lab.site.state_dir, lab.site.vcenter.uuid, measurement)


def test_what_vms_took_beside_somebody_else_says_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "vm-02")
    waited = Connection.wait_for_commands

    def comes(self: Connection, commands: Any, timeout_s: float) -> Any:
        with lab.server.world.lock:
            other.state.seats = tuple(replace(seat, pci_id=GPU) for seat in other.state.seats)
            other.power_changed()
        return waited(self, commands, timeout_s)

    monkeypatch.setattr(Connection, "wait_for_commands", comes)
    [count] = lab.measure(wish("true")).measurement.done
    assert count.error == f"vm-02 shared GPU {GPU} with its VMs: what they took says nothing"
    assert (count.times_s, lab.vms(), other.state.power) == ((), [], Power.ON)


def test_a_vm_that_vcenter_still_makes_is_removed_by_a_later_call(lab: Lab) -> None:
    known = SharingMeasurement("0123abcd", wish("true"), made=1)
    _keep(lab, known)
    [golden] = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "golden"]
    assert isinstance(lab.site.vcenter, Connection)
    machine = lab.site.vcenter.vm(golden.moid)
    spec = vim.vm.CloneSpec(
        location=vim.vm.RelocateSpec(host=lab.site.vcenter.host(lab.host.moid), pool=_pool(lab.site.vcenter, lab.host)),
        config=vim.vm.ConfigSpec(annotation=known.marker),
    )
    machine.CloneVM_Task(machine.parent, known.name(1), spec)
    early = remove_measurement(lab.site, apply=True)
    assert early.left == ("golden: vCenter is still making a VM of it; the same again when that is done",)
    assert (early.vms, lab.kept) == ((), known)
    with lab.server.world.lock:
        lab.server.world.clock.advance(7200)
    assert [vm.name for vm in lab.vms()] == [known.name(1)]
    late = remove_measurement(lab.site, apply=True)
    assert (late.vms, late.left, lab.vms(), lab.kept) == ((known.name(1),), (), [], None)


def _pool(connection: Connection, host: Any) -> Any:
    return connection.host(host.moid).parent.resourcePool


@pytest.mark.parametrize("cut", [KeyboardInterrupt(), VcenterUnreachable("it is gone")])
def test_whoever_cuts_a_measurement_off_is_told_that_its_vms_stay(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, cut: BaseException
) -> None:
    def ended(*_: object) -> None:
        raise cut

    said: list[str] = []
    lab.site.say = said.append
    monkeypatch.setattr(Connection, "wait_for_commands", ended)
    with pytest.raises(type(cut)):
        lab.measure(wish("true"))
    assert lab.kept is not None and len(lab.vms()) == 1
    assert said[-1] == (
        f"measurement {lab.kept.id} was cut off, and its VMs stay: the same again goes on, "
        "gpuops size --measure --remove removes them"
    )


def test_staggered_vms_begin_one_after_another(lab: Lab) -> None:
    found = lab.measure(wish("sleep 1; date +%s%N", 1, 2, overlap=0.25))
    one, two = found.measurement.done
    assert (one.error, two.error, two.apart_s) == ("", "", 0.0)
    started = [entry.at for entry in lab.server.ledger if "program" in entry.after]
    assert 0.7 < (started[2] - started[1]).total_seconds() < 5


def test_one_vm_with_a_whole_gpu_is_measured_beside_them(lab: Lab) -> None:
    found = lab.measure(wish("sleep 0.2", 1, 2, whole=True))
    assert [(each.device, each.sharers, each.error) for each in found.measurement.done] == [
        (MeasuredDevice.DIRECT_PATH, 1, ""),
        (MeasuredDevice.WHOLE_VGPU, 1, ""),
        (MeasuredDevice.SHARE, 1, ""),
        (MeasuredDevice.SHARE, 2, ""),
    ]
    assert [str(each) for each in found.plan.whole] == ["DirectPath I/O, GPU 0000:d8:00.0", "nvidia_a40-48q"]
    assert (found.exit_code, found.plan.notes, lab.vms(), lab.kept) == (0, (), [], None)
    assert set(overheads(found.measurement.done)) == {"whole vGPU", "best-effort"}


def test_without_a_free_gpu_in_directpath_the_others_are_measured(lab: Lab) -> None:
    with lab.server.world.lock:
        lab.host.state.gpus = tuple(gpu for gpu in lab.host.state.gpus if gpu.pci_id != "0000:d8:00.0")
    found = lab.measure(wish("true", whole=True))
    assert found.plan.notes == ("esx-01 has no free NVIDIA A40 in DirectPath I/O: it is not measured beside them",)
    assert [each.device for each in found.measurement.done] == [MeasuredDevice.WHOLE_VGPU, MeasuredDevice.SHARE]
    assert overheads(found.measurement.done) == {}, "there is nothing to compare with"


def test_a_vm_that_a_cut_off_call_left_does_not_keep_the_whole_gpu_from_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise VcenterUnreachable("it is gone")

    monkeypatch.setattr(Connection, "wait_for_commands", cut)
    with pytest.raises(VcenterUnreachable):
        lab.measure(wish("true", whole=True))
    monkeypatch.undo()
    assert len(lab.vms()) == 1, "one with DirectPath I/O"
    found = lab.measure(wish("true", whole=True))
    assert [each.error for each in found.measurement.done] == ["", "", ""]
    assert (found.exit_code, lab.vms(), lab.kept) == (0, [], None)


def test_how_much_the_gpu_was_used_is_told_by_the_samples_of_that_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = Connection.wait_for_commands

    def two_minutes(self: Connection, commands: Any, timeout_s: float) -> Any:
        ends = list(waited(self, commands, timeout_s))
        with lab.server.world.lock:
            lab.server.world.clock.advance(120)
        return ends

    asked = wish("true")
    [soon] = lab.measure(asked).measurement.done
    assert soon.gpu_use is None, "there is no whole sample yet"
    monkeypatch.setattr(Connection, "wait_for_commands", two_minutes)
    [count] = lab.measure(asked).measurement.done
    assert count.gpu_use is not None and 0.0 <= count.gpu_use <= 1.0


SHUT = SettingSchedulers(Rolling(vms=Displacement.SHUT_DOWN), lambda line: None)


def _agree(plan: MeasurePlan, changes: tuple[ChangeReport, ...]) -> None:
    """To all of it."""


def _vm(lab: Lab, name: str) -> Any:
    return next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == name)


def _after_each_change(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> list[str]:
    """What happens when the host is back; the list gets a line for each change that was applied."""
    changed, done = api.change, list[str]()

    def watched(request: Any, verb: str, *arguments: Any, apply: bool, **others: Any) -> ChangeReport:
        report = changed(request, verb, *arguments, apply=apply, **others)
        if apply:
            done.append(verb)
            assert len(done) < 6, "the host is rebooted again and again"
            happens()
        return report

    monkeypatch.setattr(api, "change", watched)
    return done


def test_schedulers_are_set_in_between_and_the_first_one_again(lab: Lab) -> None:
    told: list[str] = []
    setting = SettingSchedulers(Rolling(vms=Displacement.SHUT_DOWN), told.append)
    asked: list[tuple[str, ...]] = []
    wanted = wish("sleep 0.2", 1, 2, schedulers=(BEST, EQUAL), sets_schedulers=True)

    def consent(plan: MeasurePlan, changes: tuple[ChangeReport, ...]) -> None:
        asked.append(tuple(each.verb for each in changes if each.plan.feasible))
        assert (plan.now, plan.later) == ((1, 2), (EQUAL,))

    looked = measure_schedulers(wanted, lab.site, setting, apply=False, consent=consent)
    assert (looked.exit_code, asked, lab.kept, lab.host.state.module_options) == (0, [], None, "")
    found = measure_schedulers(wanted, lab.site, setting, apply=True, consent=consent)
    assert asked == [("scheduler set",)]
    assert [(each.scheduler, each.sharers, each.error) for each in found.measured.measurement.done] == [
        (BEST, 1, ""),
        (BEST, 2, ""),
        (EQUAL, 1, ""),
        (EQUAL, 2, ""),
    ]
    assert (found.exit_code, len(found.changes), lab.vms(), lab.kept) == (0, 2, [], None)
    again = scheduler_show(lab.site, Scope())
    assert {str(each.effective) for host in again.hosts for each in host.gpus if each.note is None} == {"best-effort"}
    others = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name in ("vm-01", "vm-02")]
    assert {vm.state.power for vm in others} == {Power.ON}
    assert (lab.host.state.module_options, lab.host.state.loaded_module_options) == ("", ""), "no entry stays"


def test_a_host_that_cannot_be_emptied_is_said_before_anything_is_made(lab: Lab) -> None:
    setting = SettingSchedulers(Rolling(), lambda line: None)
    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    found = measure_schedulers(wanted, lab.site, setting, apply=True, consent=lambda plan, changes: None)
    assert (found.exit_code, lab.kept, lab.vms()) == (3, None, [])
    [refused] = found.changes
    assert any("vm-01" in each.line for each in refused.plan.rejections)


def test_what_a_killed_call_had_changed_the_same_call_sets_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    waited = Connection.wait_for_commands
    calls: list[object] = []

    def second_time(self: Connection, *arguments: Any) -> Any:
        calls.append(arguments)
        return killed() if len(calls) == 2 else waited(self, *arguments)

    monkeypatch.setattr(Connection, "wait_for_commands", second_time)
    with pytest.raises(Killed):
        measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    monkeypatch.undo()
    assert lab.kept is not None and lab.kept.before == _before(lab)
    assert "RmPVMRL=0x01" in (lab.host.state.loaded_module_options or "")
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    assert (found.exit_code, len(found.changes), lab.vms()) == (0, 1, [])
    assert not (lab.site.state_dir / f"{lab.site.vcenter.uuid}.measure.json").exists()
    assert (lab.host.state.module_options, lab.host.state.loaded_module_options) == ("", "")


def _before(lab: Lab) -> SchedulerBefore:
    return SchedulerBefore(lab.host.moid, PciAddress.parse(GPU), VgpuScheduler(BEST), "")


def test_what_stands_in_the_way_of_schedulers_too_is_exit_code_3(lab: Lab) -> None:
    wanted = replace(wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True), template="vm-01")
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    assert (found.exit_code, found.changes, lab.kept) == (3, (), None)


def test_a_gpu_that_is_taken_after_a_reboot_ends_it_and_the_first_scheduler_is_set_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken() -> None:
        other = _vm(lab, "vm-02")
        with lab.server.world.lock:
            other.state.seats = tuple(replace(seat, pci_id=GPU) for seat in other.state.seats)
            other.power_changed()

    done = _after_each_change(monkeypatch, taken)
    schedulers = (BEST, EQUAL, SchedulerPolicy.FIXED_SHARE)
    wanted = wish("true", schedulers=schedulers, sets_schedulers=True)
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    assert (found.exit_code, len(done), found.undone, lab.host.state.loaded_module_options) == (4, 2, "", "")
    assert lab.kept is not None and [each.scheduler for each in lab.kept.done] == [BEST], "what was measured is kept"
    shown = plain(measured_text(found.measured.plan, found.measured.measurement, ()))
    assert f"GPU {GPU} does not take 1 VMs of nvidia_a40-8q alone, and was set for it" in shown
    assert "the same again goes on" in shown


def test_the_gpu_that_was_changed_is_the_one_that_is_measured_and_set_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_is_free() -> None:
        with lab.server.world.lock:
            for name in ("vm-01", "vm-02"):
                vm = _vm(lab, name)
                vm.state.power = Power.OFF
                vm.power_changed()

    done = _after_each_change(monkeypatch, another_is_free)
    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    assert (found.exit_code, len(done), lab.host.state.loaded_module_options) == (0, 2, "")
    gpu = found.measured.plan.gpu
    assert gpu is not None and str(gpu.address) == GPU


def test_what_is_set_back_and_not_in_force_takes_a_reboot_that_is_shown_first(lab: Lab) -> None:
    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    counts = tuple(MeasuredCount(each, 1, (1.0,)) for each in (BEST, EQUAL))
    _keep(lab, SharingMeasurement("0123abcd", wanted, 1, counts, _before(lab)))
    with lab.server.world.lock:
        lab.host.state.loaded_module_options = "NVreg_RegistryDwords=RmPVMRL=0x01"
    shown = measure_schedulers(wanted, lab.site, SHUT, apply=False, consent=_agree)
    assert [each.plan.feasible and len(each.plan.rounds) for each in shown.changes] == [1]
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    assert (found.exit_code, len(found.changes), lab.host.state.loaded_module_options, lab.kept) == (0, 1, "", None)


def test_a_vm_that_came_after_it_was_agreed_to_is_not_shut_down(lab: Lab) -> None:
    late = _vm(lab, "vm-02")
    with lab.server.world.lock:
        late.state.power = Power.OFF
        late.power_changed()

    def starts(plan: MeasurePlan, changes: tuple[ChangeReport, ...]) -> None:
        with lab.server.world.lock:
            late.state.power = Power.ON
            late.power_changed()

    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    found = measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=starts)
    assert (found.exit_code, late.state.power, lab.host.state.module_options) == (4, Power.ON, "")
    assert "vm-02 would be shut down now, which was not shown before" in str(found.changes[0].plan.rejections)


def test_whoever_cuts_it_off_under_another_scheduler_is_told_how_to_set_it_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise VcenterUnreachable("it is gone")

    said: list[str] = []
    lab.site.say = said.append
    _after_each_change(monkeypatch, lambda: monkeypatch.setattr(Connection, "wait_for_commands", cut))
    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    with pytest.raises(VcenterUnreachable):
        measure_schedulers(wanted, lab.site, SHUT, apply=True, consent=_agree)
    command = f"gpuops scheduler set --scheduler best-effort --gpu {GPU} --host esx-01 --reboot rolling"
    assert said[-1].endswith(f"the same again sets it back at last, or {command}")
    assert "RmPVMRL=0x01" in lab.host.state.loaded_module_options
    monkeypatch.undo()
    removed = remove_measurement(lab.site, apply=True)
    assert (lab.vms(), lab.kept) == ([], None)
    was = f"the scheduler of GPU {GPU} of esx-01 was best-effort, and is equal-share: {command} sets it back"
    assert removed.undone == was


def test_vms_that_a_killed_call_left_do_not_keep_the_host_from_being_emptied(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.server.world.lock:
        for name in ("vm-01", "vm-02"):
            vm = _vm(lab, name)
            vm.state.power, vm.state.seats = Power.OFF, ()
            vm.power_changed()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    wanted = wish("true", schedulers=(BEST, EQUAL), sets_schedulers=True)
    moving = SettingSchedulers(Rolling(), lambda line: None)
    monkeypatch.setattr(Connection, "wait_for_commands", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_schedulers(wanted, lab.site, moving, apply=True, consent=_agree)
    monkeypatch.undo()
    assert len(lab.vms()) == 1, "it cannot be moved"
    found = measure_schedulers(wanted, lab.site, moving, apply=True, consent=_agree)
    assert (found.exit_code, len(found.changes), lab.vms(), lab.kept) == (0, 2, [], None)
