"""`gpuops size` as typed: plain numbers, a file of workloads, and what `observe` has stored of the scenario `lab`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.blocks import FINE_S, WHOLE, Block
from gpuops.extras.observe.store import Measurements
from gpuops.model.measurements.measurement import GPU_USE, VGPU_USE
from tests.cli.conftest import LAB_POLICY, Lab

Gpuops = Callable[..., Result]
WORKLOADS = Path(__file__).parents[3] / "templates" / "workloads.yaml"
SAME_GPU = ("vdi-01", "vdi-02", "vdi-03", "vdi-04", "vdi-05")


def answer_of(size_run: Result) -> dict[str, Any]:
    assert size_run.exit_code == 0, size_run.output
    answer: dict[str, Any] = json.loads(size_run.stdout)
    return answer


def store_use(lab: Lab, days: int, percent: dict[str, int], counter: str = GPU_USE, covered: int = WHOLE) -> None:
    """So many days until now, of these VMs how much of a GPU each used, always the same."""
    vcenter = answer_of(lab.run("inventory", "--output", "json"))["vcenter"]
    begin = int((lab.server.world.clock.now() - timedelta(days=days)).timestamp()) // FINE_S * FINE_S
    steps = days * 86_400 // FINE_S
    machines = {machine.state.name: machine.moid for machine in lab.server.world.by_type("VirtualMachine")}
    rows = {name: np.array([[100 * share, 100 * share, covered]], np.int64) for name, share in percent.items()}
    values = {name: np.tile(row, (steps, 1)) for name, row in rows.items()}
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    with Measurements.open(default_state_dir(), "", vcenter) as store:
        store.write(begin, {machines[name]: Block(steps, {counter: series}) for name, series in values.items()})
        store.note_observed(begin, begin + steps * FINE_S)


def test_plain_numbers_ask_no_vcenter(gpuops: Gpuops) -> None:
    answer = answer_of(gpuops("size", "--busy", "0.7", "--sharers", "24", "-o", "json"))
    [row] = answer["sizes"]
    assert (answer["source"], row["sharers"], answer["recommended"], answer["vms"]) == ("numbers", 24, None, [])
    best, equal, fixed = (row["schedulers"][name] for name in ("best-effort", "equal-share", "fixed-share"))
    assert best["slowdown"] == pytest.approx(18.31, abs=0.01) and best["throughput"] == pytest.approx(1.31, abs=0.01)
    assert equal["slowdown"] == fixed["slowdown"] == pytest.approx(18.61, abs=0.01)
    assert answer == answer_of(gpuops("size", "--busy", "70%", "--sharers", "24", "-o", "json"))


def test_a_profile_says_what_a_gpu_holds(gpuops: Gpuops) -> None:
    answer = answer_of(gpuops("size", "--busy", "0.2", "--profile", "A40-8Q", "--at-most", "1.2", "-o", "json"))
    assert (answer["profile"], answer["most_per_gpu"]) == ("nvidia_a40-8q", 6)
    assert (answer["recommended"]["sharers"], answer["recommended"]["scheduler"]) == (4, "best-effort")
    fixed = [row["schedulers"]["fixed-share"]["slowdown"] for row in answer["sizes"]]
    assert fixed == pytest.approx([2.0] + [2.108] * 4), "idle slices are wasted"
    promised = answer_of(gpuops("size", "--busy", "0.2", "--at-most", "1.5", "--guaranteed", "-o", "json"))[
        "recommended"
    ]
    assert (promised["sharers"], promised["scheduler"]) == (3, "equal-share")


@pytest.mark.long
def test_a_file_of_workloads(gpuops: Gpuops) -> None:
    answer = answer_of(gpuops("size", "--workloads", str(WORKLOADS), "--at-most", "1.2", "-o", "json"))
    assert (answer["source"], len(answer["vms"]), answer["pairs"]["observed"]) == ("workloads", 36, 2)
    assert {vm["name"] for vm in answer["vms"] if not vm["may_share"]} == {"training"}
    assert answer["pairs"]["mean_error"] is None, "two pairs say nothing of others"
    text = gpuops("size", "--workloads", str(WORKLOADS), "--at-most", "1.2").stdout
    assert "should not share: 4 x training" in text
    assert f"{answer['recommended']['gpus']} GPUs for 36 VMs" in text


@pytest.mark.long
def test_the_history_of_a_profile(lab: Lab) -> None:
    store_use(lab, 8, dict.fromkeys(SAME_GPU, 10) | {"vdi-07": 100})
    answer = answer_of(lab.run("size", "--profile", "a40-8q", "--at-most", "1.15", "-o", "json"))
    vms = {vm["name"]: vm for vm in answer["vms"]}
    assert set(vms) == {*SAME_GPU, "vdi-07"}
    assert answer["history"]["hours_most"] == pytest.approx(8 * 24)
    assert 0.10 < vms["vdi-01"]["busy"] < 0.13, "four others were on its GPU: alone it had used more"
    assert vms["vdi-07"]["busy"] > 0.96 and not vms["vdi-07"]["may_share"]
    assert (answer["recommended"]["sharers"], answer["recommended"]["gpus"]) == (6, 2)
    assert answer["left_out"]["vdi-08"] == "0 h of history"
    text = lab.run("size", "--profile", "a40-8q", "--at-most", "1.15").stdout
    assert "by 192 h of history of 6 VMs" in text
    assert "should not share: vdi-07" in text
    assert "less than a week" not in text


@pytest.mark.long
def test_pairs_that_the_history_saw_correct_what_busy_shares_say(lab: Lab) -> None:
    """Each is alone on the GPU by day in turn, and every third day both are: half as fast then, as neither foresees."""
    vcenter = answer_of(lab.run("inventory", "--output", "json"))["vcenter"]
    steps = 9 * 86_400 // FINE_S
    begin = int((lab.server.world.clock.now() - timedelta(days=9)).timestamp()) // FINE_S * FINE_S
    moments = begin + np.arange(steps) * FINE_S
    day, by_day = moments // 86_400 % 3, (moments // 3600 % 24 >= 8) & (moments // 3600 % 24 < 18)
    base_load = np.where(by_day & (day == 2), 2000, 0)
    used = {name: np.where(by_day & (day == turn), 4000, base_load) for name, turn in (("vdi-01", 0), ("vdi-02", 1))}
    used |= {name: np.zeros(steps, np.int64) for name in SAME_GPU[2:]}
    machines = {machine.state.name: machine.moid for machine in lab.server.world.by_type("VirtualMachine")}
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    with Measurements.open(default_state_dir(), "", vcenter) as store:
        blocks = {name: np.stack([use, use, np.full(steps, WHOLE)], axis=1) for name, use in used.items()}
        store.write(begin, {machines[name]: Block(steps, {GPU_USE: block}) for name, block in blocks.items()})
        store.note_observed(begin, begin + steps * FINE_S)
    answer = answer_of(lab.run("size", "--vm", "vdi-0[12]", "--sharers", "2", "-o", "json"))
    assert answer["pairs"]["observed"] == 1 and set(answer["pairs"]["pressure"]) == {"vdi-01", "vdi-02"}
    assert answer["pairs"]["sensitivity"]["vdi-01"] == pytest.approx(0.5, abs=0.05)
    slowdown = answer["sizes"][0]["schedulers"]["best-effort"]["slowdown"]
    assert slowdown == pytest.approx(1.5, abs=0.05), "half of its work alone, and half of it twice as long"
    assert (
        "corrected by 1 observed pair; a VM beside another one is off too few"
        in lab.run("size", "--vm", "vdi-0[12]").stdout
    )


@pytest.mark.long
def test_a_full_gpu_may_have_been_wanted_more(lab: Lab) -> None:
    store_use(lab, 1, dict.fromkeys(SAME_GPU, 20))
    answer = answer_of(lab.run("size", "--vm", "vdi-0*", "--sharers", "5", "-o", "json"))
    assert answer["history"]["full"] == 1.0
    assert all(vm["busy"] > 0.6 for vm in answer["vms"])
    text = lab.run("size", "--vm", "vdi-0*").stdout
    assert "GPUs that VMs share were full in 100% of the time" in text
    assert "less than a week" in text


@pytest.mark.long
def test_vms_of_a_pool_and_since_when(lab: Lab) -> None:
    store_use(lab, 8, {"vdi-01": 30, "vdi-03": 30})
    command = ("size", "--policy", LAB_POLICY, "--pool", "office", "--since", "2d", "-o", "json")
    answer = answer_of(lab.run(*command))
    assert {vm["hours"] for vm in answer["vms"]} == {48.0}
    refused = lab.run("size", "--policy", LAB_POLICY, "--pool", "nobody")
    assert refused.exit_code == 2 and "there is no pool 'nobody'" in refused.stderr


@pytest.mark.long
def test_what_only_nvidia_smi_told_counts(lab: Lab) -> None:
    """It is one reading in each look: every fourth step of five minutes has one, and stands for no more than itself."""
    store_use(lab, 1, {"vdi-07": 40}, VGPU_USE, covered=1)
    answer = answer_of(lab.run("size", "--vm", "vdi-07", "-o", "json"))
    assert answer["vms"][0]["busy"] == pytest.approx(0.4, rel=0.04)
    assert answer["history"]["hours_most"] == pytest.approx(24.0)
