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
from gpuops.sim.wire import sim_client
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


def write_textfile(lab: Lab, folder: Path) -> str:
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
    capacity = document(lab, "capacity")
    return {
        (host["name"], profile["name"]): (profile["now"]["at_least"], profile["now"]["at_most"])
        for cluster in capacity["clusters"]
        for host in cluster["hosts"]
        for profile in host["profiles"]
    }


def require_slots(figures: Found, slots: dict[tuple[str, str], tuple[int, int | None]]) -> None:
    def of(name: str) -> dict[tuple[str, str], float]:
        return {
            (dict(labels)["host"], dict(labels)["profile"]): value for labels, value in figures.get(name, {}).items()
        }

    certain = {place: least for place, (least, most) in slots.items() if least or most is not None}
    assert of("gpuops_vgpu_slots_free") == certain
    unsure = {place: most for place, (least, most) in slots.items() if most is not None and most != least}
    assert of("gpuops_vgpu_slots_free_at_most") == unsure
    whole = of("gpuops_vgpu_slots")
    assert whole.keys() <= slots.keys()
    assert all(whole[place] >= least for place, (least, _) in slots.items() if place in whole)


def require_gpus(figures: Found, inventory: Any) -> None:
    """The GPUs, and the VMs on each, are those of `gpuops inventory`."""
    gpus = [(host, gpu) for host in inventory["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]]
    told_on = {
        (host["name"], gpu["address"], vm["name"], vm["ref"]) for host, gpu in gpus for vm in gpu["holders"] or ()
    }
    on = set()
    for name in ("gpuops_gpu_vgpu_info", "gpuops_gpu_directpath_info"):
        for labels in figures.get(name, {}):
            by_label = dict(labels)
            on.add((by_label["host"], by_label["gpu"], by_label["vm"], by_label["vm_id"]))
    assert on == told_on
    assert {(dict(labels)["host"], dict(labels)["gpu"]) for labels in figures["gpuops_gpu_info"]} == {
        (host["name"], gpu["address"]) for host, gpu in gpus
    }
    for host, gpu in gpus:
        if gpu["memory_mib"] is not None:
            size = only(figures, "gpuops_gpu_memory_size_bytes", host=host["name"], gpu=gpu["address"])
            assert size == gpu["memory_mib"] * 1024**2


@needs_promtool
def test_its_figures_are_those_of_other_commands(lab: Lab, tmp_path: Path) -> None:
    text = write_textfile(lab, tmp_path)
    require_taken(text)
    figures = samples(text)
    require_slots(figures, slots(lab))
    require_gpus(figures, document(lab, "inventory"))
    profiles = {vm["name"]: {device.get("profile") for device in vm["devices"]} for vm in
                document(lab, "inventory", "--vms")["vms"]}  # fmt: skip
    running = Counter(
        device["profile"] for vm in document(lab, "inventory", "--vms")["vms"] if vm["power"] == "poweredOn"
        for device in vm["devices"] if "profile" in device
    )  # fmt: skip
    counts: Counter[str] = Counter()
    for labels, number in figures["gpuops_vgpus_running"].items():
        counts[dict(labels)["profile"]] += int(number)
    assert +counts == running
    named = [dict(labels) for labels in figures["gpuops_gpu_vgpu_info"]]
    assert named and all(by_label["profile"] in profiles[by_label["vm"]] for by_label in named if "profile" in by_label)
    assert only(figures, "gpuops_up") == 1
    assert only(figures, "gpuops_suspended_desktops") == 0
    absent = {"gpuops_last_rotation_outcome", "gpuops_harvested_gpu_seconds_total", "gpuops_measured_timestamp_seconds",
              "gpuops_incidents_total", "gpuops_return_deadline_timestamp_seconds", "gpuops_vm_gpu_utilization_ratio",
              "gpuops_source_up"}  # fmt: skip
    assert absent.isdisjoint(figures), "unknown figures are absent, and not 0"
    assert lab.effects == []


@pytest.mark.quick_cases(1)
@needs_promtool
@pytest.mark.parametrize("scenario", ["vdi", "scattered", "fleet:hosts=20,vms=120"])
def test_they_are_in_other_worlds_too(scenario: str, tmp_path: Path, clean: Path) -> None:
    with start(scenario, clock="stepped") as server, lab_on(server, tmp_path, clean) as other_lab:
        text = write_textfile(other_lab, tmp_path)
        require_taken(text)
        figures = samples(text)
        require_slots(figures, slots(other_lab))
        require_gpus(figures, document(other_lab, "inventory", "--hosts"))
        assert other_lab.effects == []


@pytest.mark.long
def test_slots_of_a_host_do_not_depend_on_what_runs_there(lab: Lab, tmp_path: Path) -> None:
    before = samples(write_textfile(lab, tmp_path))
    assert lab.run("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--power", "on").exit_code == 0
    after = samples(write_textfile(lab, tmp_path))
    assert after["gpuops_vgpu_slots"] == before["gpuops_vgpu_slots"]
    assert after["gpuops_vgpu_slots_free"] != before["gpuops_vgpu_slots_free"]
    assert any(dict(labels)["vm"] == "ml-07" for labels in after["gpuops_gpu_vgpu_info"])
    require_slots(after, slots(lab))


@pytest.mark.long
def test_use_is_that_of_the_store(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("observe", "--once").exit_code == 0
    figures = samples(write_textfile(lab, tmp_path))
    [vcenter_store] = stored(default_state_dir()).vcenters
    until = vcenter_store.observed[-1].until
    assert only(figures, "gpuops_measured_timestamp_seconds") == until.timestamp()
    assert only(figures, "gpuops_source_up", source="measurements") == 1
    vms = {vm.moid: vm for vm in lab.server.world.by_type("VirtualMachine")}
    hosts = {host.moid: host for host in lab.server.world.by_type("HostSystem")}
    assert figures["gpuops_gpu_utilization_ratio"] and figures["gpuops_vm_gpu_utilization_ratio"]
    with Measurements.open(default_state_dir(), "", vcenter_store.vcenter) as store:
        for labels, value in figures["gpuops_vm_gpu_utilization_ratio"].items():
            by_label = dict(labels)
            assert vms[by_label["vm_id"]].name == by_label["vm"]
            series = store.window(by_label["vm_id"], (GPU_USE, GPU_MEMORY), vcenter_store.observed[-1].begin, until)
            newest = [step for step in series[GPU_USE].steps if step is not None][-1]
            assert value == newest.average / 10_000
            memory = [step for step in series[GPU_MEMORY].steps if step is not None][-1]
            assert figures["gpuops_vm_gpu_memory_used_bytes"][labels] == memory.average * 1024
        for labels, value in figures["gpuops_gpu_utilization_ratio"].items():
            by_label = dict(labels)
            ref = next(ref for ref, host in hosts.items() if host.name == by_label["host"])
            name = f"{GPU_USE}@{by_label['gpu']}"
            steps = store.window(ref, (name,), vcenter_store.observed[-1].begin, until)[name].steps
            assert value == [step for step in steps if step is not None][-1].average / 10_000


@pytest.mark.long
def test_use_that_is_old_is_absent_and_its_end_is_told(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("observe", "--once").exit_code == 0
    ended = only(samples(write_textfile(lab, tmp_path)), "gpuops_measured_timestamp_seconds")
    lab.server.world.clock.advance(2 * 3600)
    figures = samples(write_textfile(lab, tmp_path))
    assert only(figures, "gpuops_measured_timestamp_seconds") == ended
    assert "gpuops_gpu_utilization_ratio" not in figures and "gpuops_vm_gpu_utilization_ratio" not in figures


@pytest.mark.long
def test_a_night_and_its_morning(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("rotate", "night", "--policy", LAB_POLICY, "--yes").exit_code == 0
    figures = samples(write_textfile(lab, tmp_path))
    taken_vms = [vm for vm in document(lab, "rotate", "status")["vms"] if vm["whereabouts"] == "away"]
    desktops = [vm for vm in taken_vms if vm["role"] != "ml"]
    suspended = sum(effect.startswith("SuspendVM_Task") for effect in lab.effects)
    assert only(figures, "gpuops_suspended_desktops") == len(desktops) == suspended > 0
    assert only(figures, "gpuops_last_rotation_outcome", outcome="open") == 1
    assert only(figures, "gpuops_harvested_gpu_seconds_total") == 0, "the night has begun, and no ML VM has ended"
    assert "gpuops_return_deadline_timestamp_seconds" not in figures, "the policy has no windows"

    assert lab.run("rotate", "day", "--policy", LAB_POLICY, "--yes").exit_code == 0
    figures = samples(write_textfile(lab, tmp_path))
    history = document(lab, "history")
    [night] = history["nights"]
    shown_night = document(lab, "history", "show", night["night"])["nights"][0]
    assert only(figures, "gpuops_suspended_desktops") == 0
    assert "gpuops_return_deadline_timestamp_seconds" not in figures
    outcomes = {dict(labels)["outcome"]: value for labels, value in figures["gpuops_last_rotation_outcome"].items()}
    assert outcomes == {"done": 1, "open": 0, "given up": 0, "nothing taken": 0}
    harvested = only(figures, "gpuops_harvested_gpu_seconds_total")
    assert harvested == pytest.approx(3600 * past_events(default_state_dir()).harvested.at_least) and harvested > 0
    assert harvested / 3600 == pytest.approx(history["totals"]["gpu_hours"], abs=1e-3), "which is rounded there"
    began, ends = night["began"], [run["ended"] for run in shown_night["runs"]]
    assert only(figures, "gpuops_last_rotation_begin_timestamp_seconds") == datetime.fromisoformat(began).timestamp()
    assert only(figures, "gpuops_last_rotation_end_timestamp_seconds") == datetime.fromisoformat(max(ends)).timestamp()
    assert only(figures, "gpuops_last_rotation_incidents") == night["incident_count"]
    assert only(figures, "gpuops_incidents_total", of="night") == sum(
        night_of_history["incident_count"] for night_of_history in history["nights"]
    )
    assert only(figures, "gpuops_incidents_total", of="change") == 0
    assert only(figures, "gpuops_source_up", source="journal") == 1


def test_the_file_is_for_everybody_and_replaced_in_one_step(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "gpuops.prom"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o600)
    before = path.stat().st_ino
    result = lab.run("metrics", "--textfile", str(path), "--output", "json")
    summary = json.loads(result.stdout)
    text = path.read_text(encoding="utf-8")
    assert (path.stat().st_mode & 0o777, path.stat().st_ino == before) == (0o644, False)
    assert (summary["kind"], summary["file"], text[-1]) == ("metrics", str(path), "\n")
    assert summary["samples"] == sum(len(same_metric) for same_metric in samples(text).values())
    assert [path_left.name for path_left in tmp_path.iterdir() if path_left.name.startswith(".")] == []
    assert f'vcenter="sim@{lab.ready}"' in text


@pytest.mark.parametrize(
    ("options", "code"), [(("--vcenter", "https://127.0.0.1:1"), 5), (("--vcenter", "nowhere"), None), ((), 2)]
)
def test_after_a_failure_the_file_says_so(
    gpuops: Gpuops, tmp_path: Path, options: tuple[str, ...], code: int | None
) -> None:
    path = tmp_path / "gpuops.prom"
    path.write_text("gpuops_up 1\n", encoding="utf-8")
    result = gpuops(
        "metrics", "--textfile", str(path), *options, "--username", "me", "--password-file", str(secret(tmp_path))
    )
    assert result.exit_code in ((code,) if code is not None else (2, 5)), result.output
    assert (result.stdout, result.stderr.startswith("error: ")) == ("", True)
    figures = samples(path.read_text(encoding="utf-8"))
    assert only(figures, "gpuops_up") == 0
    assert set(figures) == {"gpuops_up", "gpuops_build_info"}


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
    figures = samples(path.read_text(encoding="utf-8"))
    assert (only(figures, "gpuops_up"), only(figures, "gpuops_source_up", source="journal")) == (1, 0)
    assert "gpuops_suspended_desktops" not in figures and "gpuops_last_rotation_outcome" not in figures
    assert figures["gpuops_vgpu_slots_free"]


@needs_promtool
def test_names_are_text_whatever_is_in_them(clean: Path, tmp_path: Path) -> None:
    from gpuops.sim.scenario.build import build

    with SimServer(build("lab")) as server:
        kinds = ("VirtualMachine", "HostSystem", "ClusterComputeResource")
        for kind in kinds:
            for number, named_object in enumerate(server.world.by_type(kind)):
                named_object.name += HOSTILE[number % len(HOSTILE)]
        ready, path = tmp_path / "ready.json", tmp_path / "hostile.prom"
        sim_client.write(ready, sim_client.of(server))
        result = CliRunner().invoke(app, ["metrics", "--textfile", str(path), "--vcenter", f"sim@{ready}"])
        assert result.exit_code == 0, result.output
        text = path.read_text(encoding="utf-8")
        require_taken(text)
        inventory = json.loads(CliRunner().invoke(app, ["inventory", "-o", "json", "--vcenter", f"sim@{ready}"]).stdout)
        require_gpus(samples(text), inventory)
