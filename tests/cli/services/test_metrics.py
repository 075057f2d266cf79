"""`gpuops metrics` as typed, on the scenario `lab`: its figures beside those of other commands, files, and failures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.api import history as past_events
from gpuops.cli.app import app
from gpuops.execute.journal import FILE_NAME
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.store_reads import stored_measurements as stored
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import ready_file
from tests.cli.conftest import LAB_POLICY, Lab, lab_on
from tests.cli.test_hostile_names import SENT_BY_VCENTER
from tests.prometheus import Found, needs_promtool, only, require_taken, samples

Gpuops = Callable[..., Result]
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x>',
    "back\\slash\\",
    "\u05e9\u05dc\u05d5\u05dd\u202e",
    "\N{SAUROPOD}\N{EM DASH}",
    '{a="b"} 1\n#',
    SENT_BY_VCENTER,
)


def written(lab: Lab, folder: Path) -> str:
    path = folder / "gpuops.prom"
    result = lab.run("metrics", "--textfile", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    return path.read_text(encoding="utf-8")


def document(lab: Lab, *words: str) -> Any:
    result = lab.run(*words, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def slots(lab: Lab) -> dict[tuple[str, str], tuple[int, int | None]]:
    """By host and profile, what `gpuops capacity` says is free."""
    told = document(lab, "capacity")
    return {
        (host["name"], each["name"]): (each["now"]["at_least"], each["now"]["at_most"])
        for cluster in told["clusters"]
        for host in cluster["hosts"]
        for each in host["profiles"]
    }


def require_slots(found: Found, told: dict[tuple[str, str], tuple[int, int | None]]) -> None:
    def of(name: str) -> dict[tuple[str, str], float]:
        return {(dict(labels)["host"], dict(labels)["profile"]): value for labels, value in found.get(name, {}).items()}

    certain = {place: least for place, (least, most) in told.items() if least or most is not None}
    assert of("gpuops_vgpu_slots_free") == certain
    unsure = {place: most for place, (least, most) in told.items() if most is not None and most != least}
    assert of("gpuops_vgpu_slots_free_at_most") == unsure
    whole = of("gpuops_vgpu_slots")
    assert whole.keys() <= told.keys()
    assert all(whole[place] >= least for place, (least, _) in told.items() if place in whole)


def require_gpus(found: Found, told: Any) -> None:
    """Who is on which GPU, and the GPUs, are those of `gpuops inventory`."""
    gpus = [(host, gpu) for host in told["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]]
    told_on = {
        (host["name"], gpu["address"], vm["name"], vm["ref"]) for host, gpu in gpus for vm in gpu["holders"] or ()
    }
    on = set()
    for name in ("gpuops_gpu_vgpu_info", "gpuops_gpu_directpath_info"):
        for labels in found.get(name, {}):
            each = dict(labels)
            on.add((each["host"], each["gpu"], each["vm"], each["vm_id"]))
    assert on == told_on
    assert {(dict(labels)["host"], dict(labels)["gpu"]) for labels in found["gpuops_gpu_info"]} == {
        (host["name"], gpu["address"]) for host, gpu in gpus
    }
    for host, gpu in gpus:
        if gpu["memory_mib"] is not None:
            size = only(found, "gpuops_gpu_memory_size_bytes", host=host["name"], gpu=gpu["address"])
            assert size == gpu["memory_mib"] * 1024**2


@needs_promtool
def test_its_figures_are_those_of_other_commands(lab: Lab, tmp_path: Path) -> None:
    text = written(lab, tmp_path)
    require_taken(text)
    found = samples(text)
    require_slots(found, slots(lab))
    require_gpus(found, document(lab, "inventory"))
    profiles = {vm["name"]: {device.get("profile") for device in vm["devices"]} for vm in
                document(lab, "inventory", "--vms")["vms"]}  # fmt: skip
    running = Counter(
        device["profile"] for vm in document(lab, "inventory", "--vms")["vms"] if vm["power"] == "poweredOn"
        for device in vm["devices"] if "profile" in device
    )  # fmt: skip
    told: Counter[str] = Counter()
    for labels, number in found["gpuops_vgpus_running"].items():
        told[dict(labels)["profile"]] += int(number)
    assert +told == running
    named = [dict(labels) for labels in found["gpuops_gpu_vgpu_info"]]
    assert named and all(each["profile"] in profiles[each["vm"]] for each in named if "profile" in each)
    assert only(found, "gpuops_up") == 1
    assert only(found, "gpuops_suspended_desktops") == 0
    absent = {"gpuops_last_rotation_outcome", "gpuops_harvested_gpu_seconds_total", "gpuops_measured_timestamp_seconds",
              "gpuops_incidents_total", "gpuops_return_deadline_timestamp_seconds", "gpuops_vm_gpu_utilization_ratio",
              "gpuops_source_up"}  # fmt: skip
    assert absent.isdisjoint(found), "what nobody knows is absent, and not 0"
    assert lab.effects == []


@pytest.mark.quick_cases(1)
@needs_promtool
@pytest.mark.parametrize("scenario", ["vdi", "scattered", "fleet:hosts=20,vms=120"])
def test_they_are_in_other_worlds_too(scenario: str, tmp_path: Path, clean: Path) -> None:
    with start(scenario, clock="stepped") as server, lab_on(server, tmp_path, clean) as there:
        text = written(there, tmp_path)
        require_taken(text)
        found = samples(text)
        require_slots(found, slots(there))
        require_gpus(found, document(there, "inventory", "--hosts"))
        assert there.effects == []


@pytest.mark.long
def test_slots_of_a_host_do_not_depend_on_what_runs_there(lab: Lab, tmp_path: Path) -> None:
    before = samples(written(lab, tmp_path))
    assert lab.run("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--power", "on").exit_code == 0
    after = samples(written(lab, tmp_path))
    assert after["gpuops_vgpu_slots"] == before["gpuops_vgpu_slots"]
    assert after["gpuops_vgpu_slots_free"] != before["gpuops_vgpu_slots_free"]
    assert any(dict(labels)["vm"] == "ml-07" for labels in after["gpuops_gpu_vgpu_info"])
    require_slots(after, slots(lab))


@pytest.mark.long
def test_use_is_that_of_the_store(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("observe", "--once").exit_code == 0
    found = samples(written(lab, tmp_path))
    [held] = stored(default_state_dir()).vcenters
    until = held.observed[-1].until
    assert only(found, "gpuops_measured_timestamp_seconds") == until.timestamp()
    assert only(found, "gpuops_source_up", source="measurements") == 1
    vms = {vm.moid: vm for vm in lab.server.world.by_type("VirtualMachine")}
    hosts = {host.moid: host for host in lab.server.world.by_type("HostSystem")}
    assert found["gpuops_gpu_utilization_ratio"] and found["gpuops_vm_gpu_utilization_ratio"]
    with Measurements.open(default_state_dir(), "", held.vcenter) as store:
        for labels, value in found["gpuops_vm_gpu_utilization_ratio"].items():
            each = dict(labels)
            assert vms[each["vm_id"]].name == each["vm"]
            series = store.window(each["vm_id"], (GPU_USE, GPU_MEMORY), held.observed[-1].begin, until)
            newest = [step for step in series[GPU_USE].steps if step is not None][-1]
            assert value == newest.average / 10_000
            memory = [step for step in series[GPU_MEMORY].steps if step is not None][-1]
            assert found["gpuops_vm_gpu_memory_used_bytes"][labels] == memory.average * 1024
        for labels, value in found["gpuops_gpu_utilization_ratio"].items():
            each = dict(labels)
            ref = next(ref for ref, host in hosts.items() if host.name == each["host"])
            name = f"{GPU_USE}@{each['gpu']}"
            steps = store.window(ref, (name,), held.observed[-1].begin, until)[name].steps
            assert value == [step for step in steps if step is not None][-1].average / 10_000


@pytest.mark.long
def test_use_that_is_old_is_absent_and_its_end_is_told(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("observe", "--once").exit_code == 0
    ended = only(samples(written(lab, tmp_path)), "gpuops_measured_timestamp_seconds")
    lab.server.world.clock.advance(2 * 3600)
    found = samples(written(lab, tmp_path))
    assert only(found, "gpuops_measured_timestamp_seconds") == ended
    assert "gpuops_gpu_utilization_ratio" not in found and "gpuops_vm_gpu_utilization_ratio" not in found


@pytest.mark.long
def test_a_night_and_its_morning(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("rotate", "night", "--policy", LAB_POLICY, "--yes").exit_code == 0
    found = samples(written(lab, tmp_path))
    away = [vm for vm in document(lab, "rotate", "status")["vms"] if vm["whereabouts"] == "away"]
    desktops = [vm for vm in away if vm["role"] != "ml"]
    suspended = sum(effect.startswith("SuspendVM_Task") for effect in lab.effects)
    assert only(found, "gpuops_suspended_desktops") == len(desktops) == suspended > 0
    assert only(found, "gpuops_last_rotation_outcome", outcome="open") == 1
    assert only(found, "gpuops_harvested_gpu_seconds_total") == 0, "the night has begun, and no ML VM has ended"
    assert "gpuops_return_deadline_timestamp_seconds" not in found, "the policy has no windows"

    assert lab.run("rotate", "day", "--policy", LAB_POLICY, "--yes").exit_code == 0
    found = samples(written(lab, tmp_path))
    told = document(lab, "history")
    [night] = told["nights"]
    shown = document(lab, "history", "show", night["night"])["nights"][0]
    assert only(found, "gpuops_suspended_desktops") == 0
    assert "gpuops_return_deadline_timestamp_seconds" not in found
    outcomes = {dict(labels)["outcome"]: value for labels, value in found["gpuops_last_rotation_outcome"].items()}
    assert outcomes == {"done": 1, "open": 0, "given up": 0, "nothing taken": 0}
    harvested = only(found, "gpuops_harvested_gpu_seconds_total")
    assert harvested == pytest.approx(3600 * past_events(default_state_dir()).harvested.at_least) and harvested > 0
    assert harvested / 3600 == pytest.approx(told["totals"]["gpu_hours"], abs=1e-3), "which is rounded there"
    began, ends = night["began"], [run["ended"] for run in shown["runs"]]
    assert only(found, "gpuops_last_rotation_begin_timestamp_seconds") == datetime.fromisoformat(began).timestamp()
    assert only(found, "gpuops_last_rotation_end_timestamp_seconds") == datetime.fromisoformat(max(ends)).timestamp()
    assert only(found, "gpuops_last_rotation_incidents") == night["incident_count"]
    assert only(found, "gpuops_incidents_total", of="night") == sum(each["incident_count"] for each in told["nights"])
    assert only(found, "gpuops_incidents_total", of="change") == 0
    assert only(found, "gpuops_source_up", source="journal") == 1


def test_the_file_is_for_everybody_and_replaced_in_one_step(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "gpuops.prom"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o600)
    before = path.stat().st_ino
    result = lab.run("metrics", "--textfile", str(path), "--output", "json")
    told = json.loads(result.stdout)
    text = path.read_text(encoding="utf-8")
    assert (path.stat().st_mode & 0o777, path.stat().st_ino == before) == (0o644, False)
    assert (told["kind"], told["file"], text[-1]) == ("metrics", str(path), "\n")
    assert told["samples"] == sum(len(each) for each in samples(text).values())
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    assert f'vcenter="sim@{lab.ready}"' in text


@pytest.mark.parametrize(
    ("more", "code"), [(("--vcenter", "https://127.0.0.1:1"), 5), (("--vcenter", "nowhere"), None), ((), 2)]
)
def test_after_a_failure_the_file_says_so(
    gpuops: Gpuops, tmp_path: Path, more: tuple[str, ...], code: int | None
) -> None:
    path = tmp_path / "gpuops.prom"
    path.write_text("gpuops_up 1\n", encoding="utf-8")
    result = gpuops(
        "metrics", "--textfile", str(path), *more, "--username", "me", "--password-file", str(secret(tmp_path))
    )
    assert result.exit_code in ((code,) if code is not None else (2, 5)), result.output
    assert (result.stdout, result.stderr.startswith("error: ")) == ("", True)
    found = samples(path.read_text(encoding="utf-8"))
    assert only(found, "gpuops_up") == 0
    assert set(found) == {"gpuops_up", "gpuops_build_info"}


def secret(folder: Path) -> Path:
    path = folder / "password"
    path.write_text("x", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.mark.long
def test_a_damaged_journal_is_told_and_costs_nothing_else(lab_by_night: Lab, tmp_path: Path) -> None:
    (default_state_dir() / FILE_NAME).write_bytes(b"no database at all, for it is long enough" * 100)
    path = tmp_path / "gpuops.prom"
    result = lab_by_night.run("metrics", "--textfile", str(path))
    assert (result.exit_code, "Traceback" in result.stderr) == (7, False)
    found = samples(path.read_text(encoding="utf-8"))
    assert (only(found, "gpuops_up"), only(found, "gpuops_source_up", source="journal")) == (1, 0)
    assert "gpuops_suspended_desktops" not in found and "gpuops_last_rotation_outcome" not in found
    assert found["gpuops_vgpu_slots_free"]


@needs_promtool
def test_names_are_text_whatever_is_in_them(clean: Path, tmp_path: Path) -> None:
    from gpuops.sim.scenario.build import build

    with SimServer(build("lab")) as server:
        kinds = ("VirtualMachine", "HostSystem", "ClusterComputeResource")
        for kind in kinds:
            for number, each in enumerate(server.world.by_type(kind)):
                each.name += HOSTILE[number % len(HOSTILE)]
        ready, path = tmp_path / "ready.json", tmp_path / "hostile.prom"
        ready_file.write(ready, ready_file.of(server))
        result = CliRunner().invoke(app, ["metrics", "--textfile", str(path), "--vcenter", f"sim@{ready}"])
        assert result.exit_code == 0, result.output
        text = path.read_text(encoding="utf-8")
        require_taken(text)
        told = json.loads(CliRunner().invoke(app, ["inventory", "-o", "json", "--vcenter", f"sim@{ready}"]).stdout)
        require_gpus(samples(text), told)
