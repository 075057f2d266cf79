"""Files of faults, by id or by rule, and the seed by which trouble is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule, rules_of
from gpuops.sim.outside_events.fault_file import read
from tests.sim.lab import Lab, serve_lab


def test_a_fault_file_holds_ids_aimed_ids_and_rules(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        'faults:\n  - T2\n  - {fault: V1, target: "vdi-00*", skip: 3}\n'
        "  - {effect: fault, method: PowerOnVM_Task, fault: NoCompatibleHost, times: null}\n"
    )
    assert read(path) == (
        *rules_of("T2"),
        Rule(Effect.TASK, method="SuspendVM_Task", target="vdi-00*", fault="NoDiskSpace", skip=3),
        Rule(Effect.FAULT, method="PowerOnVM_Task", fault="NoCompatibleHost", times=None),
    )
    assert rules_of("T2")[0].phase is Phase.AFTER


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("faults: [T99]", "fault 1: no fault is called 'T99'"),
        ("faults: [{fault: V1, colour: red}]", "fault 1: not a fault rule: colour"),
        ("faults: [T1, {effect: reset, every: 0}]", "fault 2: not a fault rule: every"),
        ("faults: [T1, 7]", "fault 2: 7 is neither the id of a fault nor a rule"),
        ("trouble: []", "is not one list named `faults`"),
        ("faults: [", "faults.yaml: line 1, column 10: "),
        ("faults: [T1]\nfaults: [T2]", "the key 'faults' is set twice"),
        (
            "faults: [{effect: fault, fault: NoSuch, method: Login}]",
            "fault 1: NoSuch is not a fault of the vSphere API",
        ),
        ("faults: [T1, {effect: stuck, method: PowerOnVm_Task}]", "fault 2: the vSphere API has no method"),
        ("faults: [{effect: happen, happening: vm.eaten}]", "fault 1: `happening` names no outside event: 'vm.eaten'"),
        ("faults: [{fault: T11, delay_s: 1e999}]", "fault 1: not a fault rule: delay_s"),
    ],
)
def test_a_wrong_fault_file_is_refused_by_its_entry(written: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(written)
    with pytest.raises(UsageError, match=reason.replace("[", r"\[")) as refused:
        read(path)
    assert "\n" not in refused.value.line


@pytest.mark.long
def test_the_same_seed_gives_the_same_trouble() -> None:
    def night(seed: int) -> list[str]:
        with serve_lab(seed=seed) as lab:
            lab.world.injector.add(Rule(Effect.TASK, fault="NoDiskSpace", probability=0.5, times=None))
            return [task_state(lab, lab.vm(f"vdi-0{number}").SuspendVM_Task()) for number in (1, 2, 3, 7, 8, 9)]

    assert night(3) == night(3)
    assert len({tuple(night(seed)) for seed in range(4)}) > 1


def task_state(lab: Lab, task: Any) -> str:
    lab.let_pass(600)
    return str(task.info.state)
