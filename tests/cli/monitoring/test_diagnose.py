"""`gpuops diagnose` as typed: what `observe` stored of the scenario `lab`, cases of files, and what people found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.diagnosis.case import case_line
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.diagnosis.learning import examples, fit_forest
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.diagnosis.model import ForestSettings
from tests.cli.conftest import Lab
from tests.prometheus import only, samples
from tests.stored_day import BUSY, store_day

Gpuops = Callable[..., Result]


def answer_of(completed: Result) -> dict[str, Any]:
    assert completed.exit_code == 0, completed.output
    answer: dict[str, Any] = json.loads(completed.stdout)
    return answer


def store_values(lab: Lab, values: dict[str, dict[str, int]]) -> None:
    """Of these VMs and hosts, by name, what each counter said in each step of the last day."""
    vcenter = answer_of(lab.run("inventory", "--output", "json"))["vcenter"]
    store_day(lab.server, default_state_dir(), vcenter, values)


@pytest.fixture
def trained(lab: Lab) -> None:
    """A small model stands."""
    cases = list(made_cases(3, 8))
    model = fit_forest(examples(cases), ForestSettings(trees=5), 1)
    Diagnoses(default_state_dir()).set_model(replace(model, right=0.5))


@pytest.mark.long
def test_a_licence_that_is_missing_is_certain_and_what_nobody_measured_cannot_be_told(lab: Lab) -> None:
    store_values(
        lab, {"vdi-05": {**BUSY, "smi.vgpu.licensed.latest": 0}, "vdi-04": {**BUSY, "smi.vgpu.licensed.latest": 1}}
    )
    answer = answer_of(lab.run("diagnose", "--vm", "vdi-0*", "-o", "json"))
    vms = {vm["vm"]: vm for vm in answer["vms"]}
    assert answer["model"]["confirmed"] == 0, "the model that comes with gpuops"
    assert [(suspect["component"], suspect["by_rule"]) for suspect in vms["vdi-05"]["suspects"][:1]] == [
        ("licence", True)
    ]
    assert vms["vdi-05"]["suspects"][0]["evidence"][0] == "without a licence in 100% of the readings"
    assert vms["vdi-04"]["suspects"][0]["component"] == "none"
    assert vms["vdi-04"]["cannot_be_told"]["ecc"] == "nvidia-smi on the host (observe --host-shell ssh)"
    assert "licence" not in vms["vdi-04"]["cannot_be_told"] and "cpu-ready" in vms["vdi-04"]["cannot_be_told"]
    assert answer["left_out"]["vdi-01"] == "0 h of history"
    text = lab.run("diagnose", "--vm", "vdi-05").stdout
    assert "99%  vGPU without licence" in text and "by rules and by a model of" in text
    assert "cannot be judged here: PCIe link below its width" not in text, "they are named together, by what is needed"
    assert (
        "ECC errors of the GPU, PCIe link below its width, GPU slowed by heat or power (needs nvidia-smi on the" in text
    )
    assert "confirm or correct the diagnosis by its id" in text


@pytest.mark.usefixtures("trained")
def test_a_model_says_how_probable_each_is_and_people_confirm_or_correct_it(lab: Lab) -> None:
    store_values(lab, {"vdi-05": {**BUSY, "cpu.ready.summation": 30_000}})
    [vm] = answer_of(lab.run("diagnose", "--vm", "vdi-05", "-o", "json"))["vms"]
    assert vm["hours"] == pytest.approx(24, abs=0.2)
    assert vm["suspects"] and all(0.1 <= suspect["probability"] <= 0.99 for suspect in vm["suspects"])
    second_id = answer_of(lab.run("diagnose", "--vm", "vdi-05", "-o", "json"))["vms"][0]["id"]
    assert second_id == vm["id"], "the same numbers are the same diagnosis"
    assert answer_of(lab.run("diagnose", "correct", vm["id"], "cpu-ready", "-o", "json"))["at_fault"] == ["cpu-ready"]
    [case] = Diagnoses(default_state_dir()).confirmed_cases()
    assert (case.name, sorted(case.at_fault)) == (vm["id"], ["cpu-ready"])
    first = vm["suspects"][0]["component"]
    assert answer_of(lab.run("diagnose", "confirm", vm["id"], "-o", "json"))["at_fault"] == [first]


def test_a_counter_of_the_gpu_is_read_by_the_address_of_the_gpu(lab: Lab) -> None:
    inventory = answer_of(lab.run("inventory", "--output", "json"))
    host = next(esx for esx in inventory["hosts"] if "'vdi-05'" in str(esx))
    slow = {f"smi.gpu.slowedByHeat.latest@{gpu['address']}": 1 for node in host["numa_nodes"] for gpu in node["gpus"]}
    store_values(lab, {"vdi-05": BUSY, host["name"]: slow})
    answer = answer_of(lab.run("diagnose", "--host", host["name"], "-o", "json"))
    of = {vm["vm"]: [suspect["component"] for suspect in vm["suspects"]] for vm in answer["vms"]}
    assert of["vdi-05"][0] == "throttling"


@pytest.mark.long
def test_no_history_is_said(lab: Lab) -> None:
    refusal = lab.run("diagnose", "--vm", "vdi-05")
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert "less than half an hour of vdi-05 was measured" in refusal.stderr and "gpuops observe" in refusal.stderr
    assert lab.run("diagnose", "--vm", "nobody").exit_code == 2
    off = lab.run("diagnose", "--vm", "zzz-*")
    assert off.exit_code == 2 and "no VM with a vGPU is selected" in off.stderr


def test_cases_made_elsewhere_are_judged(gpuops: Gpuops, tmp_path: Path) -> None:
    cases = [case for case in made_cases(5, 2) if "vm:smi.vgpu.licensed.latest" in case.case.series]
    (tmp_path / "some.jsonl").write_text(
        "".join(json.dumps(case_line(case)) + "\n" for case in cases), encoding="utf-8"
    )
    answer = answer_of(gpuops("diagnose", "--cases", str(tmp_path), "-o", "json"))
    assert len(answer["cases"]) == len(cases) and 0 < answer["right"] <= 1
    by_name = {case_row["name"]: case_row for case_row in answer["cases"]}
    licence = next(case_row for case_row in by_name.values() if case_row["at_fault"] == ["licence"])
    assert licence["suspects"][0]["component"] == "licence"
    assert "of the components right" in gpuops("diagnose", "--cases", str(tmp_path)).stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: "),
        ('{"name": "a", "series": {"vm:nothing": [1]}}', "'vm:nothing' is not a series"),
        ('{"name": "a", "series": {"vm:gpu.utilization.average": [-1]}}', "should be 0.0 or more"),
        ('{"name": "a", "at_fault": ["ghosts"], "series": {"vm:gpu.utilization.average": [1]}}', "at_fault.0"),
        ('{"name": "a", "series": {"vm:gpu.utilization.average": [1], "vm:gpu.mem.used.average": []}}', "equally long"),
        ("", "contain no case"),
    ],
)
def test_a_line_that_is_no_case_is_named(gpuops: Gpuops, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "wrong.jsonl").write_text(line, encoding="utf-8")
    refusal = gpuops("diagnose", "--cases", str(tmp_path))
    assert refusal.exit_code == 2 and message in refusal.stderr and "Traceback" not in refusal.output
    assert len(refusal.stderr.splitlines()) == 2


def test_options_and_ids_that_mean_nothing(gpuops: Gpuops, tmp_path: Path) -> None:
    refusal = gpuops("diagnose", "--cases", str(tmp_path), "--vm", "ml-07")
    assert refusal.exit_code == 2 and "--cases and --vm exclude each other" in refusal.stderr
    assert "is not a directory with files *.jsonl" in gpuops("diagnose", "--cases", str(tmp_path / "none")).stderr
    for name in ("d-0123456789", "../../etc/passwd"):
        refusal = gpuops("diagnose", "confirm", name)
        assert refusal.exit_code == 2 and f"there is no diagnosis {name}" in refusal.stderr
    assert gpuops("diagnose", "correct", "d-0123456789", "ghosts").exit_code == 2


@pytest.mark.usefixtures("trained")
def test_a_correction_helps_at_once_before_a_model_learns_from_it(lab: Lab) -> None:
    """The VM itself from its first correction on, VMs made alike from two on that agree."""
    busy = {f"vdi-{number:02}": {**BUSY, "cpu.ready.summation": 30_000 + number} for number in range(3, 7)}
    store_values(lab, busy)

    def first() -> dict[str, dict[str, Any]]:
        vms = answer_of(lab.run("diagnose", "--vm", "vdi-0*", "-o", "json"))["vms"]
        return {vm["vm"]: vm | {"first": vm["suspects"][0]["component"]} for vm in vms}

    before = first()
    named = {vm["first"] for vm in before.values()}
    assert len(named) == 1 and len(before) > 2
    wrong, right = named.pop(), "network"
    corrected, two, *remaining = sorted(before)
    answer_of(lab.run("diagnose", "correct", before[corrected]["id"], right, "-o", "json"))
    after = first()
    assert after[corrected]["first"] == right and {after[name]["first"] for name in (two, *remaining)} == {wrong}
    assert after[corrected]["suspects"][0]["evidence"] == [f"1 of 1 people's findings on this VM, not {wrong}"]
    answer_of(lab.run("diagnose", "correct", after[two]["id"], right, "-o", "json"))
    assert {vm["first"] for vm in first().values()} == {right}
    assert {vm["first"] for vm in first().values()} == {right}, "what was corrected is not taken for a confirmation"


FIRST_FORMAT = {"format": 1, "features": [], "components": [], "settings": {"trees": 60}, "trees": {}}
"""As models were written before each component had trees of its own."""


@pytest.mark.parametrize("text", [json.dumps(FIRST_FORMAT), "[]", "no JSON"])
def test_a_model_that_is_none_is_told_and_left(gpuops: Gpuops, tmp_path: Path, text: str) -> None:
    folder = default_state_dir() / "diagnosis"
    folder.mkdir(parents=True, mode=0o700)
    default_state_dir().chmod(0o700)
    (folder / "model.json").write_text(text, encoding="utf-8")
    case = case_line(next(made_cases(5, 1)))
    (tmp_path / "one.jsonl").write_text(json.dumps(case), encoding="utf-8")
    refusal = gpuops("diagnose", "--cases", str(tmp_path))
    assert refusal.exit_code == 7 and f"the model {folder / 'model.json'} cannot be read" in refusal.stderr.replace(
        "\n", ""
    )
    assert "move the file to another directory" in refusal.stderr
    assert "gpuops diagnose train makes a new one" in refusal.stderr
    assert (folder / "model.json").read_text(encoding="utf-8") == text, "it is left as it was"
    if "format" in text:
        assert "another version of gpuops wrote it" in refusal.stderr


@pytest.mark.long
def test_what_was_said_is_in_the_report_and_the_metrics(lab: Lab, tmp_path: Path) -> None:
    with lab.server.world.lock:
        lab.server.world.clock.advance(10.0)  # the simulated evening begins where two steps of five minutes meet
    assert answer_of(lab.run("report", "-o", "json"))["diagnoses"] == []
    assert lab.run("metrics", "--textfile", str(tmp_path / "none.prom")).exit_code == 0
    assert "diagnos" not in (tmp_path / "none.prom").read_text(encoding="utf-8"), "nothing was diagnosed"
    store_values(
        lab, {"vdi-05": {**BUSY, "smi.vgpu.licensed.latest": 0}, "vdi-04": {**BUSY, "smi.vgpu.licensed.latest": 1}}
    )
    by_vm = {vm["vm"]: vm for vm in answer_of(lab.run("diagnose", "--vm", "vdi-0*", "-o", "json"))["vms"]}
    document = answer_of(lab.run("report", "--html", str(tmp_path / "fleet.html"), "-o", "json"))
    first, second = document["diagnoses"]
    assert (first["vm"], first["id"], first["found"]) == ("vdi-05", by_vm["vdi-05"]["id"], None)
    assert first["suspects"] == by_vm["vdi-05"]["suspects"] and first["host"] == by_vm["vdi-05"]["host"]
    assert (second["vm"], second["suspects"][0]["component"]) == ("vdi-04", "none")
    page = (tmp_path / "fleet.html").read_text(encoding="utf-8")
    section = page[page.index('<section aria-labelledby="slow">') :].split("</section>")[0]
    for text in ("vdi-05", "licence", "99%", first["id"], "without a licence in 100% of the readings", "none"):
        assert text in section
    assert "gpuops diagnose confirm ID" in section
    assert "2 VMs diagnosed" in lab.run("report").stdout

    def gauges() -> dict[tuple[str, str], float]:
        export = lab.run("metrics", "--textfile", str(tmp_path / "some.prom"))
        assert export.exit_code == 0, export.output
        series = samples((tmp_path / "some.prom").read_text(encoding="utf-8"))["gpuops_vm_diagnosis_probability_ratio"]
        return {(dict(labels)["vm"], dict(labels)["component"]): value for labels, value in series.items()}

    assert gauges()["vdi-05", "licence"] == 0.99 and gauges()["vdi-04", "none"] > 0.5
    answer_of(lab.run("diagnose", "correct", first["id"], "datastore", "-o", "json"))
    assert of_vm(gauges(), "vdi-05") == {"datastore": 1.0}, "what a person found is what there is"
    assert answer_of(lab.run("report", "-o", "json"))["diagnoses"][0]["found"] == ["datastore"]
    answer_of(lab.run("diagnose", "--vm", "vdi-05", "-o", "json"))
    assert of_vm(gauges(), "vdi-05") == {"datastore": 1.0}, "the same numbers are settled"


def of_vm(gauges: dict[tuple[str, str], float], name: str) -> dict[str, float]:
    return {component: value for (vm, component), value in gauges.items() if vm == name}


@pytest.mark.long
def test_a_diagnosis_that_cannot_be_read_is_said(lab: Lab, tmp_path: Path) -> None:
    store_values(lab, {"vdi-05": {**BUSY, "smi.vgpu.licensed.latest": 0}})
    [vm] = answer_of(lab.run("diagnose", "--vm", "vdi-05", "-o", "json"))["vms"]
    (default_state_dir() / "diagnosis" / "cases" / f"{vm['id']}.json").write_text("{}", encoding="utf-8")
    report, metrics = lab.run("report"), lab.run("metrics", "--textfile", str(tmp_path / "some.prom"))
    assert report.exit_code == metrics.exit_code == 7
    assert vm["id"] in report.stderr and vm["id"] in metrics.stderr
    figures = samples((tmp_path / "some.prom").read_text(encoding="utf-8"))
    assert only(figures, "gpuops_source_up", source="diagnoses") == 0
