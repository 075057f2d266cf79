"""Hosts that go by other rules than the planner's are noticed in the first run that meets them, each once; and a
simulator as it is documented makes no misprediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

import pytest
from pyVim.connect import Disconnect

from gpuops.api import HostShell, Site, history, past_predictions, rotate_day, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.execute.site import agreed
from gpuops.execute.steps.predictions import BY_OTHERS
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.prediction import PastPredictions, Predicted
from gpuops.model.vcenter.host_settings import SmiState, SmiVgpu
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.power import MoveMode, PowerPolicy
from gpuops.report.layout import plain
from gpuops.report.plan_text import report_text
from gpuops.report.prediction import mispredictions_counted, predictions_document, predictions_text
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.operations.vms.power import stop
from gpuops.sim.server import SimServer
from gpuops.sim.state.gpu_admission import Deviation, GpuOrder, StartOrder
from gpuops.vsphere.connection import Connection
from tests.document_schemas import misfits
from tests.sim.conftest import connect
from tests.sim.lab import Lab
from tests.wire.conftest import target_of

ON, OFF = PowerPolicy.ON, PowerPolicy.OFF
A40, MIG = "a40-8q", "a100-3-20c"
LAB_POLICY = Path(__file__).parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"


class SimulatedSmi:
    """What the nvidia-smi of simulated hosts tells of their vGPUs, without SSH."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def mig(self, host: str) -> tuple[SmiState, ...]:
        return ()

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        [there] = [each for each in self._server.world.by_type("HostSystem") if each.display_name == host]
        names = {vm.moid: vm.name for vm in there.vms()}
        return tuple(
            SmiVgpu(PciAddress.parse(seat.pci_id), names[seat.vm], seat.type.name, seat.start) for seat in there.seats()
        )


@dataclass
class Wire:
    """One simulated vCenter, one state directory, and a login for each call."""

    server: SimServer
    state_dir: Path
    smi: bool = False

    def deviate(self, deviation: Deviation) -> None:
        for host in self.server.world.by_type("HostSystem"):
            host.state.deviation = deviation

    def attach(self, vm: str, profile: str, during: Callable[[], None] | None = None) -> Report:
        return self.do(lambda site: run(Attach(vm, profile=profile, power=ON), site, apply=True), during)

    def do(self, act: Callable[[Site], Report], during: Callable[[], None] | None = None) -> Report:
        with Connection(target_of(self.server)) as vcenter:
            site = Site(vcenter, self.state_dir, wall_clock)
            if self.smi:
                site.shell = cast(HostShell, SimulatedSmi(self.server))
            if during is not None:
                site.in_flight = lambda steps: during() if any(isinstance(each, PowerOnVm) for each in steps) else None
            return act(site)

    @property
    def past(self) -> PastPredictions:
        return past_predictions(self.state_dir)


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path) -> Wire:
    return Wire(lab, tmp_path)


def mispredicted(report: Report) -> list[tuple[Predicted, str, str]]:
    return [(each.what, each.predicted, each.found) for outcome in report.outcomes for each in outcome.mispredicted]


def check_told_once(wire: Wire, report: Report) -> None:
    """The report, history and the list tell the same one, with its facts."""
    [found] = [each for outcome in report.outcomes for each in outcome.mispredicted]
    [past] = wire.past.wrong
    assert past.found == found
    assert {"profiles", "assignment policy", "host version", "vCenter API"} <= found.facts.keys()
    text = plain(report_text(report))
    assert text.count("misprediction: ") == 1
    assert "next: gpuops doctor --predictions" in text
    [line] = mispredictions_counted(1)
    assert line.startswith("1 misprediction: gpuops doctor --predictions")
    [change] = [each for each in history(wire.state_dir).changes if each.mispredictions]
    assert change.mispredictions == (past,)
    assert "1 misprediction; " in plain(predictions_text(wire.past))
    assert misfits(predictions_document(wire.past)) == []


@pytest.mark.long
def test_a_host_that_fills_the_emptiest_gpu(wire: Wire) -> None:
    wire.deviate(Deviation(gpus=GpuOrder.EMPTIEST))
    report = wire.attach("ml-08", A40)
    assert report.exit_code == 0, "it runs all the same"
    [(what, predicted, found)] = mispredicted(report)
    assert (what, predicted) == (Predicted.GPU, "0000:3b:00.0 (NUMA node 0)")
    assert found == "0000:af:00.0 (NUMA node 1)"
    check_told_once(wire, report)


@pytest.mark.long
def test_a_profile_that_a_driver_forbids(wire: Wire) -> None:
    wire.deviate(Deviation(forbids=frozenset({"grid_a100-3-20c"})))
    report = wire.attach("ml-07", MIG)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE, Verdict.FAILED]
    [(what, predicted, found)] = mispredicted(report)
    assert (what, predicted) == (Predicted.ADMISSION, "admitted")
    assert found.startswith("refused: ml-07: no graphics resources")
    check_told_once(wire, report)
    again = wire.attach("ml-07", MIG)
    assert len(mispredicted(again)) == 1, "another run meets it again"
    assert len(wire.past.wrong) == 2


@pytest.mark.long
@pytest.mark.parametrize("smi", [True, False])
def test_other_mig_starts_are_noticed_where_nvidia_smi_is_asked(wire: Wire, smi: bool) -> None:
    wire.smi = smi
    wire.deviate(Deviation(starts=StartOrder.HIGHEST))
    report = wire.attach("ml-07", "a100-1-5c")
    assert report.exit_code == 0
    if not smi:
        assert mispredicted(report) == []
        return
    [(what, predicted, found)] = mispredicted(report)
    assert (what, predicted, found) == (Predicted.MIG_START, "0000:3b:00.0 at 0", "0000:3b:00.0 at 6")
    check_told_once(wire, report)


@pytest.mark.long
def test_slower_suspends_of_a_night(wire: Wire) -> None:
    policy = load_policy(LAB_POLICY)
    wire.server.world.injector.add(Rule(Effect.SLOW, "SuspendVM_Task", times=1, factor=60.0))
    night = wire.do(lambda site: rotate_night(policy, site, apply=True, consent=agreed))
    [(what, predicted, found)] = mispredicted(night)
    assert (what, predicted) == (Predicted.DURATION, "450 s at the most")
    assert int(found.removesuffix(" s")) > 450
    day = wire.do(lambda site: rotate_day(policy, site, apply=True))
    assert mispredicted(day) == []
    [past] = wire.past.wrong
    assert (past.step, past.run_kind, past.night is not None) == ("suspend", "rotate night", True)
    [found_night] = history(wire.state_dir).nights
    assert (found_night.mispredictions, found_night.returned) == ((past,), len(found_night.desktops))


@pytest.mark.long
def test_a_profile_that_a_driver_forbids_at_night(wire: Wire) -> None:
    """Starts that were under way together on one host: beside all of them there was room."""
    wire.deviate(Deviation(forbids=frozenset({"grid_a100-3-20c"})))
    night = wire.do(partial(rotate_night, load_policy(LAB_POLICY), apply=True))
    refused = [each for each in night.outcomes if each.verdict is Verdict.FAILED]
    assert refused
    assert all(each.mispredicted for each in refused)
    assert len(wire.past.wrong) == len(refused)
    day = wire.do(partial(rotate_day, load_policy(LAB_POLICY), apply=True))
    assert (day.exit_code, mispredicted(day)) == (0, [])


@pytest.mark.long
def test_what_others_did_meanwhile_is_none(wire: Wire) -> None:
    """Somebody resumes a VM of that host while ours starts: no look shows it yet, the task history of vCenter does."""
    wire.deviate(Deviation(gpus=GpuOrder.EMPTIEST))
    begun: list[str] = []

    def during() -> None:
        if not begun:
            other = connect(wire.server)
            begun.append(str(Lab(wire.server.world, other).vm("vdi-11").PowerOnVM_Task()._moId))
            Disconnect(other)

    report = wire.attach("ml-08", A40, during)
    assert (report.exit_code, mispredicted(report)) == (0, [])
    assert begun
    assert list(wire.past.cannot_say) == [BY_OTHERS]


@pytest.mark.long
def test_a_vm_that_left_a_gpu_of_the_host_between_the_looks_makes_it_unsure(wire: Wire) -> None:
    wire.deviate(Deviation(gpus=GpuOrder.EMPTIEST))

    def during() -> None:
        """Without a task: its user shuts it down."""
        world = wire.server.world
        [mate] = [each for each in world.by_type("VirtualMachine") if each.name == "vdi-07"]
        stop(mate, somebody(world, "ShutdownGuest"), clean=True)

    report = wire.attach("ml-08", A40, during)
    assert mispredicted(report) == []
    assert list(wire.past.cannot_say) == ["another VM came to a GPU of its host, or left one, meanwhile"]


@pytest.mark.long
def test_a_night_and_its_morning_as_documented_have_none(wire: Wire) -> None:
    policy = load_policy(LAB_POLICY)
    for _ in range(2):
        for act in (rotate_night, rotate_day):
            report = wire.do(partial(act, policy, apply=True))
            assert mispredicted(report) == []
    assert wire.past.wrong == ()
    assert wire.past.right >= 10


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(50))
def test_none_on_a_simulator_as_documented(wire: Wire, seed: int) -> None:
    """Twenty runs each, a thousand in all, of which the long suite draws a fifth."""
    random, runs = Random(f"predictions:{seed}"), 0
    wire.smi = seed % 2 == 1
    while runs < 20:
        vm, profile = (
            random.choice(("ml-07", "ml-08")),
            random.choice((A40, MIG, "a100-1-5c", "a100-2-10c", "a100d-80c")),
        )
        request = random.choice(
            (
                Attach(vm, profile=profile, count=random.choice((1, 2)), power=ON, add=True, move=MoveMode.COLD),
                Detach(vm, all=True, power=random.choice((OFF, PowerPolicy.CYCLE))),
            )
        )
        report = wire.do(partial(run, request, apply=True))
        if report.outcomes:
            assert mispredicted(report) == [], (request, report.outcomes)
        runs += 1
    assert wire.past.wrong == ()
    assert wire.past.right > 5
