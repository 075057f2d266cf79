"""VMs that are made to measure how they share a GPU: guests that really run, and GPU time that is really shared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.advise.sizing.measured import measured_curve
from gpuops.api import Site
from gpuops.api.measuring import SharingMeasured, measure, remove_measurement
from gpuops.clock import wall_clock
from gpuops.errors import Refused, UsageError, VcenterUnreachable
from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement
from gpuops.model.inventory import Inventory
from gpuops.model.scheduler import SchedulerPolicy
from gpuops.model.sharing_measurement import PREFIX, MeasureWish, SharingMeasurement
from gpuops.model.target import GuestLogin, Secret
from gpuops.plan.capacity.measure import MeasurePlan
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.gpu_time import GpuTime

SCENARIO = str(Path(__file__).parents[1] / "sim" / "real_guests.yaml")
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
