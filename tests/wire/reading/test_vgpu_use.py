"""A night uses vGPU utilization from nvidia-smi when it plans and just before it suspends each desktop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuops.advise.idle import judge_vms
from gpuops.api import Site, rotate_night
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.model.desktops.evidence import VgpuUse
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import SuspendVm
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import LAB_POLICY

TEXT = LAB_POLICY.read_text(encoding="utf-8")
REQUIRED: Policy = parse_policy(
    TEXT.replace("    floor: 0\n", "    floor: 0\n    evidence: {required: [cpu, console, nvidia-smi]}\n"),
    "of the tests",
)
PLAIN: Policy = parse_policy(TEXT, "of the tests")


class Smi:
    """Return the use of each desktop as the test defines it by name, and record the desktops read in each look."""

    def __init__(self, use_of: Callable[[str, int], VgpuUse]) -> None:
        self.told = use_of
        self.looks: list[set[str]] = []

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        self.looks.append({vm.name for vm in vms})
        return {vm.ref: self.told(vm.name, len(self.looks)) for vm in vms}


@contextmanager
def lab(tmp_path: Path, smi: Smi | None) -> Iterator[Site]:
    with (
        SimServer(build("lab")) as server,
        Connection(target_of(server)) as connection,
        Site(connection, tmp_path / "state", wall_clock) as site,
    ):
        site.vgpu_use = smi
        yield site


def suspended_names(report: Report) -> set[str]:
    inventory = report.before
    completed_steps = (outcome.step for outcome in report.outcomes if outcome.verdict is Verdict.DONE)
    return {inventory.vms[step.vm].name for step in completed_steps if isinstance(step, SuspendVm)}


def test_one_that_becomes_busy_after_the_plan_is_left_alone(tmp_path: Path) -> None:
    with lab(tmp_path, Smi(lambda name, look: VgpuUse(60 if name == "vdi-07" and look > 1 else 0))) as site:
        report = rotate_night(REQUIRED, site, apply=True)
        planned = {report.before.vms[step.vm].name for step in report.plan.steps if isinstance(step, SuspendVm)}
        assert "vdi-07" in planned
        assert suspended_names(report) == planned - {"vdi-07"}
        reasons = [outcome.reason for outcome in report.outcomes if outcome.verdict is not Verdict.DONE]
        assert any("its vGPU is used 60 %, idle is below 5" in reason for reason in reasons)


def test_what_is_not_told_keeps_a_desktop_where_it_is_required_alone(tmp_path: Path) -> None:
    unknown = Smi(lambda name, look: VgpuUse(None, because="of the test"))
    with lab(tmp_path, unknown) as site:
        assert suspended_names(rotate_night(REQUIRED, site, apply=False)) == set()
        inventory = site.read_for_policy(site.vcenter.inventory(), REQUIRED)
        verdicts = judge_vms([vm for vm in inventory.vms.values() if vm.vgpu_use is not None], REQUIRED)
        assert {verdict.verdict.objection for verdict in verdicts if verdict.vm.name == "vdi-07"} == {
            "the use of its vGPU is not known: of the test"
        }
        looks_before = len(unknown.looks)
        plan = rotate_night(PLAIN, site, apply=False).plan
        assert any(isinstance(step, SuspendVm) for step in plan.steps)
        assert len(unknown.looks) == looks_before, "a policy that does not use it reads no guest"
