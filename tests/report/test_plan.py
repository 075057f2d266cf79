"""Plans and outcomes, for people and for programs: the same facts in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Choice, Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.report.document import ErrorDocument, as_values
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import Shown
from gpuops.report.plan_json import AttachDocument
from gpuops.report.plan_text import plan_text, report_text, summary

Render = Callable[[Shown], str]
Golden = Callable[[str, str], None]

ADDRESS = PciAddress.parse("0000:3b:00.0")
EVERY_STEP: tuple[Step, ...] = (
    ReconfigureVm(
        "vm-1",
        VmChange(
            add=(
                NewVgpu("grid_a100-4c", numa_node=0),
                NewDirectPath(ADDRESS, "A100", "uuid", 0x10DE, 0x20F1),
                NewDynamic(((0x10DE, 0x20F1),), "nvlink"),
            ),
            replace_profile=((13000, "grid_a100-1-5c"),),
            extra_config={"pciPassthru.use64bitMMIO": "TRUE", "gpuops.before": ""},
            memory_locked=True,
            memory_reservation_mib=65536,
            cpu_hot_add=False,
            cores_per_numa_node=0,
        ),
    ),
    ReconfigureVm("vm-3", VmChange(remove=(13001, 99), device_group="Nvidia:2@a100%NVLink")),
    RelocateVm("vm-4", "host-1"),
    PowerOnVm("vm-4"),
    PowerOnVm("vm-4", "host-1"),
    ResumeVm("vm-3"),
    SuspendVm("vm-1"),
    PowerOffVm("vm-1"),
    ShutDownGuest("vm-2"),
    SetAttribute("vm-1", "gpuops.rotation", "2026-11-02 ml"),
    SetAttribute("vm-unseen", "gpuops.rotation", ""),
    RunInGuest("vm-1", "/usr/bin/keep", "--all", 60),
)


@dataclass(frozen=True)
class Request:
    """A request as every verb's is: fields and nothing else."""

    vm: str = "ml-01"
    count: int | None = None


@pytest.fixture
def plan() -> Plan:
    return Plan(
        waves=(Wave("make room", EVERY_STEP[:6]), Wave("start\x1b", EVERY_STEP[6:])),
        unmet=(Rejection("train", "DirectPath VMs are never suspended", hint="stop it yourself"),),
        warnings=("BIOS firmware\nand more",),
        because=("checked less: the catalogue lacks grid_x",),
        choices=(
            Choice("esx-02 0000:3b:00.0", chosen=False, reason="in maintenance"),
            Choice("esx-01 0000:3b:00.0", chosen=True, reason="beside NUMA node 0"),
        ),
        disruptive=True,
    )


@pytest.fixture
def refused() -> Plan:
    return Plan(
        rejections=(
            Rejection("numa0", "memory beside the GPU", 65536, 32768, "MiB"),
            Rejection("ml-01", "is running", hint="--power cycle restarts it"),
        )
    )


def outcomes(plan: Plan) -> tuple[Outcome, ...]:
    verdicts = [Verdict.DONE, Verdict.ALREADY, Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED]
    return tuple(
        Outcome(
            step,
            verdict := verdicts[index % len(verdicts)],
            "" if verdict is Verdict.DONE else "for this\nreason",
            1.25 if verdict is Verdict.DONE else None,
        )
        for index, step in enumerate(plan.steps)
    )


def test_a_dry_run(inventory: Inventory, plan: Plan, plain: Render, golden: Golden) -> None:
    report = Report(Request(), inventory, plan)
    golden("plan.txt", plain(report_text(report, explain=True)))
    golden("plan.json", document_text(AttachDocument.made_of(report)))


def test_a_run(inventory: Inventory, plan: Plan, plain: Render, golden: Golden) -> None:
    report = Report(Request(), inventory, plan, outcomes(plan), applied=True)
    golden("outcomes.txt", plain(report_text(report)))
    golden("outcomes.json", document_text(AttachDocument.made_of(report)))


def test_a_refusal_gives_every_reason_with_its_numbers(
    inventory: Inventory, refused: Plan, plain: Render, golden: Golden
) -> None:
    report = Report(Request(), inventory, refused)
    golden("refused.txt", plain(report_text(report)))
    document = AttachDocument.made_of(report)
    assert (document.feasible, document.exit_code, document.changed) == (False, 3, False)
    assert document.rejections[0].needed == 65536


def test_nothing_to_do_says_why(inventory: Inventory, plain: Render) -> None:
    report = Report(Request(), inventory, Plan(because=("ml-01 already has grid_a100-3-20c",)))
    assert plain(report_text(report)) == "nothing to do: ml-01 already has grid_a100-3-20c\n"
    assert AttachDocument.made_of(report).changed is False


def test_what_a_person_is_asked_about_is_the_plan(inventory: Inventory, plan: Plan, plain: Render) -> None:
    text = plain(plan_text(plan, inventory))
    assert "suspend ml-01" in text
    assert "left out: train" in text


def test_text_and_document_name_the_same_steps(inventory: Inventory, plan: Plan, plain: Render) -> None:
    report = Report(Request(), inventory, plan)
    text = plain(report_text(report))
    titles = [step.title for wave in AttachDocument.made_of(report).waves for step in wave.steps]
    assert len(titles) == len(EVERY_STEP)
    assert all(title.replace("\x1b", "\\u{1b}").replace("\u202e", "\\u{202e}") in text for title in titles)


def test_no_control_character_in_any_text(inventory: Inventory, plan: Plan, plain: Render) -> None:
    for report in (Report(None, inventory, plan), Report(None, inventory, plan, outcomes(plan), applied=True)):
        assert all(line.isprintable() for line in plain(report_text(report, explain=True)).splitlines())


def test_the_closing_line_counts(inventory: Inventory, plan: Plan) -> None:
    report = Report(None, inventory, plan, outcomes(plan), applied=True)
    assert summary(report) == "3 steps done, 3 already so, 2 failed, 2 with unknown outcome, 2 not tried"
    without = tuple(outcome for outcome in outcomes(plan) if outcome.verdict in (Verdict.FAILED, Verdict.SKIPPED))
    report = Report(None, inventory, plan, without, applied=True)
    assert summary(report) == "2 steps failed, 2 not tried"


def test_an_error_is_a_document_too() -> None:
    assert as_values(ErrorDocument("vm-not-found", "no VM 'x'", "gpuops inventory --vms", 2, applied=False)) == {
        "schema_version": 1,
        "kind": "error",
        "code": "vm-not-found",
        "message": "no VM 'x'",
        "hint": "gpuops inventory --vms",
        "exit_code": 2,
        "applied": False,
    }


def test_a_morning_that_leaves_everything_out_has_done_nothing(inventory: Inventory) -> None:
    report = Report(None, inventory, Plan(unmet=(Rejection("vm-1", "not covered"),)), applied=True)
    assert (summary(report), report.exit_code) == ("nothing done: 1 left out", 4)


def test_what_a_cut_off_run_had_begun_is_shown_before_the_plan(inventory: Inventory, plain: Render) -> None:
    plan = Plan(waves=(Wave("suspend idle desktops", (SuspendVm("vm-1"),)),))
    outcomes = (
        Outcome(SuspendVm("vm-2"), Verdict.DONE, "found done after the run was cut off"),
        Outcome(SuspendVm("vm-1"), Verdict.DONE),
    )
    text = plain(report_text(Report(None, inventory, plan, outcomes, applied=True)))
    assert text.splitlines()[:3] == [
        "steps of the interrupted run",
        "  done     suspend train  found done after the run was cut off",
        "  done     suspend ml-01",
    ]
