"""VMs of a measurement that was cut off are used again or removed, and no others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.errors import Refused, VcenterUnreachable
from gpuops.extras.sizing.measuring import SharingMeasured, measure, remove_measurement
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.sharing_measurement import MeasuredCount, SharingMeasurement
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.waiting import wait_until
from tests.wire.guests.measuring.lab import BEST, EQUAL, Lab, keep, wish

pytestmark = pytest.mark.long

NOT_MADE = "{} is not the VM that gpuops created (its name or notes differ): gpuops does not change it"


@pytest.mark.long
def test_a_measurement_that_was_cut_off_goes_on_with_its_vms(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Connection, "wait_for_commands", kill)
    with pytest.raises(Killed):
        lab.measure(wish("true", 1, 2))
    monkeypatch.undo()
    [before] = lab.vms()
    assert before.state.extra_config and lab.kept is not None and lab.kept.marker in before.state.annotation
    looked = remove_measurement(lab.site, apply=False)
    assert looked.vms == (before.name,)
    measured = lab.measure(wish("true", 1, 2))
    assert [count.sharers for count in measured.measurement.done] == [1, 2]
    assert measured.measurement.id in before.name and measured.exit_code == 0 and lab.vms() == []
    assert not (lab.site.state_dir / f"{lab.site.vcenter.uuid}.measure.json").exists()


KILLED_AT = {
    "before any command": ("start_command", 1),
    "between two commands": ("start_command", 2),
    "while both run": ("wait_for_commands", 1),
}


@pytest.mark.long
@pytest.mark.parametrize("point", KILLED_AT)
def test_a_command_of_a_killed_call_ends_before_the_next_call_starts_its_own(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    class Killed(BaseException):
        pass

    name, nth = KILLED_AT[point]
    do, calls = getattr(Connection, name), list[object]()

    def kill_at_point(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == nth:
            raise Killed
        return do(*arguments, **options)

    begun_measurement = SharingMeasurement(
        "0123abcd", wish(f"echo $$ >> {tmp_path}/started; sleep $(cat {tmp_path}/time)", 1, 2)
    )
    keep(lab, begun_measurement.with_count(MeasuredCount(BEST, 1, (1.0,))))
    (tmp_path / "started").write_text("")
    (tmp_path / "time").write_text("600")
    monkeypatch.setattr(Connection, name, kill_at_point)
    with pytest.raises(Killed):
        lab.measure(begun_measurement.wish)
    monkeypatch.undo()
    commands = nth - 1 if name == "start_command" else 2
    wait_until(lambda: len(pids(tmp_path / "started")) == commands)
    first = pids(tmp_path / "started")
    assert all(map(runs, first))

    def start_alone(*arguments: Any, **options: Any) -> Any:
        assert not any(map(runs, first)), "a command of the killed call still runs"
        return start(*arguments, **options)

    (tmp_path / "time").write_text("0")
    start = Connection.start_command
    monkeypatch.setattr(Connection, "start_command", start_alone)
    measured = lab.measure(begun_measurement.wish)
    assert [count.error for count in measured.measurement.done] == ["", ""] and measured.exit_code == 0
    assert (len(pids(tmp_path / "started")), lab.vms()) == (len(first) + 2, [])


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.long
def test_a_vm_that_only_has_such_a_name_is_neither_used_nor_removed(lab: Lab) -> None:
    begun_measurement = SharingMeasurement("0123abcd", wish("true"), made=1)
    keep(lab, begun_measurement)
    namesake = _rename_vm(lab, "vm-02", begun_measurement.name(1))
    seats = namesake.state.seats
    measured = lab.measure(begun_measurement.wish)
    assert [count.error for count in measured.measurement.done] == [NOT_MADE.format(begun_measurement.name(1))]
    assert measured.left == (f"{begun_measurement.name(1)}: {NOT_MADE.format(begun_measurement.name(1))}",)
    removal = remove_measurement(lab.site, apply=True)
    assert removal.left == measured.left
    assert (namesake.state.power, namesake.state.seats, lab.kept) == (Power.ON, seats, measured.measurement)
    assert not any("program" in change.after for change in lab.server.ledger)


@pytest.mark.long
def test_a_clone_that_somebody_made_of_its_vm_is_not_removed(lab: Lab) -> None:
    begun_measurement = SharingMeasurement("0123abcd", wish("true"), made=1)
    keep(lab, begun_measurement)
    clone = _rename_vm(lab, "vm-02", f"{begun_measurement.name(1)}-copy", begun_measurement.marker)
    removal = remove_measurement(lab.site, apply=True)
    assert (removal.vms, removal.left, lab.kept) == ((), (), None)
    assert clone in lab.vms() and clone.state.power is Power.ON


def _rename_vm(lab: Lab, name: str, to: str, notes: str = "") -> Any:
    vm = next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == name)
    with lab.server.world.lock:
        vm.state.rename(to)
        vm.name = to
        vm.state.annotation = notes
        vm.configuration_changed(renamed=True)
    return vm


@pytest.mark.long
def test_a_scheduler_that_changed_while_the_admin_was_asked_is_asked_about(lab: Lab) -> None:
    schedulers_shown: list[SchedulerPolicy | None] = []

    def consent(planned: SharingMeasured) -> None:
        schedulers_shown.append(planned.plan.in_force)
        lab.set_scheduler("0x01")

    measured = measure(wish("true"), lab.site, apply=True, consent=consent)
    assert schedulers_shown == [BEST, EQUAL]
    assert [(count.scheduler, count.error) for count in measured.measurement.done] == [(EQUAL, "")]


@pytest.mark.parametrize("ask", ["measure", "remove"])
def test_what_another_call_has_begun_meanwhile_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    other_measurement = SharingMeasurement("0123abcd", wish("true"), made=1)
    if ask == "measure":
        with pytest.raises(Refused, match="another call has changed this measurement meanwhile"):
            measure(wish("true"), lab.site, apply=True, consent=lambda plan: keep(lab, other_measurement))
    else:
        keep(lab, SharingMeasurement("4567cdef", wish("true"), made=1))
        looked = Connection.inventory

        def meanwhile(self: Connection) -> Inventory:
            keep(lab, other_measurement)
            return looked(self)

        monkeypatch.setattr(Connection, "inventory", meanwhile)
        with pytest.raises(Refused, match="another call has changed this measurement meanwhile"):
            remove_measurement(lab.site, apply=True)
    assert (lab.kept, lab.vms()) == (other_measurement, [])


@pytest.mark.long
def test_a_vm_that_vcenter_still_makes_is_removed_by_a_later_call(lab: Lab) -> None:
    begun_measurement = SharingMeasurement("0123abcd", wish("true"), made=1)
    keep(lab, begun_measurement)
    [golden] = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "golden"]
    assert isinstance(lab.site.vcenter, Connection)
    machine = lab.site.vcenter.vm(golden.moid)
    spec = vim.vm.CloneSpec(
        location=vim.vm.RelocateSpec(host=lab.site.vcenter.host(lab.host.moid), pool=_pool(lab.site.vcenter, lab.host)),
        config=vim.vm.ConfigSpec(annotation=begun_measurement.marker),
    )
    machine.CloneVM_Task(machine.parent, begun_measurement.name(1), spec)
    early = remove_measurement(lab.site, apply=True)
    assert early.left == (
        "golden: vCenter is still cloning it: run gpuops measure --remove again when the clone is complete",
    )
    assert (early.vms, lab.kept) == ((), begun_measurement)
    with lab.server.world.lock:
        lab.server.world.clock.advance(7200)
    assert [vm.name for vm in lab.vms()] == [begun_measurement.name(1)]
    late = remove_measurement(lab.site, apply=True)
    assert (late.vms, late.left, lab.vms(), lab.kept) == ((begun_measurement.name(1),), (), [], None)


def _pool(connection: Connection, host: Any) -> Any:
    return connection.host(host.moid).parent.resourcePool


@pytest.mark.long
@pytest.mark.parametrize("cut", [KeyboardInterrupt(), VcenterUnreachable("it is gone")])
def test_whoever_cuts_a_measurement_off_is_told_that_its_vms_stay(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, cut: BaseException
) -> None:
    def raise_cut(*_: object) -> None:
        raise cut

    messages: list[str] = []
    lab.site.say = messages.append
    monkeypatch.setattr(Connection, "wait_for_commands", raise_cut)
    with pytest.raises(type(cut)):
        lab.measure(wish("true"))
    assert lab.kept is not None and len(lab.vms()) == 1
    assert messages[-1] == (
        f"measurement {lab.kept.id} was interrupted, and its VMs stay: run the same command again to "
        "continue, or gpuops measure --remove to remove them"
    )


@pytest.mark.long
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
    measured = lab.measure(wish("true", whole=True))
    assert [count.error for count in measured.measurement.done] == ["", "", ""]
    assert (measured.exit_code, lab.vms(), lab.kept) == (0, [], None)
