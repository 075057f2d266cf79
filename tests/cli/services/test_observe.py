"""`gpuops observe` as typed, on the scenario `lab`: what it measures, what stays unknown, gaps, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gpuops.api import Site
from gpuops.console import opening
from gpuops.console.options import CommonOptions
from gpuops.errors import VcenterUnreachable
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe import observing
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.store_reads import Step
from gpuops.extras.observe.store_reads import stored_measurements as stored
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_MEMORY, GPU_USE, VM_COUNTERS, CounterSeries, Cycle
from gpuops.model.measurements.measurement_settings import MeasurementSettings, Retention
from tests.cli.conftest import Lab


def document(lab: Lab, *arguments: str) -> dict[str, Any]:
    result = lab.run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def window(lab: Lab, vm: str, hours: int, *counters: str) -> dict[str, CounterSeries]:
    """What is stored of the hours before now."""
    [machine] = [candidate for candidate in lab.server.world.by_type("VirtualMachine") if candidate.state.name == vm]
    now = lab.server.world.clock.now()
    [vcenter] = stored(default_state_dir()).vcenters
    with Measurements.open(default_state_dir(), "", vcenter.vcenter) as store:
        return dict(store.window(machine.moid, counters, now - timedelta(hours=hours), now, Step.FINE))


def known_steps(series: CounterSeries) -> int:
    return sum(step is not None for step in series.steps)


@pytest.mark.long
def test_a_day_is_measured_with_its_gaps(lab: Lab) -> None:
    """A day of vCenter's averages, the last hour in full; then gaps of five hours and of three days."""
    first = document(lab, "observe", "--once")
    assert (first["kind"], first["vms_measured"] > 5, first["hosts_measured"]) == ("observe", True, 2)
    assert first["filled"]["until"] == first["from"]
    steps = window(lab, "vdi-01", 24, CPU_MHZ)[CPU_MHZ].steps
    full = [step for step in steps if step is not None and step.highest is not None]
    averages = [step for step in steps if step is not None and step.highest is None]
    assert (len(full), {step.covered for step in full}) == (11, {1.0})
    assert len(averages) > 100, "vCenter's own averages, whose highest is unknown"
    assert all(step.average > 0 for step in full)

    assert "nothing to do" in lab.run("observe", "--once").stdout
    lab.server.world.clock.advance(5 * 3600)
    second_look = document(lab, "observe", "--once")
    assert second_look["filled"] == {"from": first["until"], "until": second_look["from"]}
    lab.server.world.clock.advance(3 * 86_400)
    document(lab, "observe", "--once")
    steps = window(lab, "vdi-01", 70, CPU_MHZ)[CPU_MHZ].steps
    assert steps.count(None) > 45 * 12, "vCenter keeps a day; what was before stays missing"

    status = document(lab, "observe", "status")
    [vcenter] = status["vcenters"]
    assert (status["kind"], vcenter["since"], len(vcenter["gaps"])) == ("observe-status", first["from"], 2)
    text = lab.run("observe", "status").stdout
    assert "steps of 5 min" in text
    assert text.count("not observed") == 2


def test_a_look_keeps_how_fragmented_free_gpu_memory_is(lab: Lab) -> None:
    document(lab, "observe", "--once")
    report = json.loads(lab.run("report", "--output", "json").stdout)
    [series] = report["measured"]["history"]["fragmentation"].values()
    models = json.loads(lab.run("capacity", "--output", "json").stdout)["fragmentation"]
    free, fragmented = (sum(model[key] for model in models) for key in ("free_mib", "fragmented_mib"))
    assert series["percent"][-1] == pytest.approx(100 * fragmented / free, abs=1)
    assert series["unusable_gpus_percent"][-1] == 0


@pytest.mark.long
def test_gpu_use_of_mig_backed_vgpus_is_unknown_and_not_zero(lab: Lab) -> None:
    look = document(lab, "observe", "--once")
    machines = {machine.state.name: machine.state for machine in lab.server.world.by_type("VirtualMachine")}
    backed: set[str] = set()
    sliced: set[str] = set()
    for name, state in machines.items():
        if state.seats:
            (backed if any(seat.type.instance is not None for seat in state.seats) else sliced).add(name)
    assert all(known_steps(window(lab, name, 1, GPU_USE)[GPU_USE]) == 0 for name in backed)
    assert all(known_steps(window(lab, name, 1, GPU_USE)[GPU_USE]) > 0 for name in sliced)
    assert sliced
    assert look["vms_gpu_unknown"] == len(backed)


def test_the_service_looks_again_and_outlives_an_absent_vcenter(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes for vCenter in each pause; the second look does not reach it, the last pause is ended by a signal."""
    pauses: list[float] = []
    look = observing.observe

    def sometimes_away(site: Site, retention: Retention | None = None) -> Cycle:
        if len(pauses) == 1:
            raise VcenterUnreachable("vc does not answer")
        return look(site, retention)

    def passes(seconds: float) -> None:
        pauses.append(seconds)
        lab.server.world.clock.advance(seconds)
        if len(pauses) == 3:
            raise SystemExit(143)

    opened = opening.open_site

    def open_paused(common: CommonOptions) -> Site:
        site = opened(common)
        site.pause = passes
        return site

    monkeypatch.setattr(opening, "open_site", open_paused)
    monkeypatch.setattr(observing, "observe", sometimes_away)
    result = lab.run("observe", "--verbose")
    assert result.exit_code == 143
    looks = [line for line in result.stderr.splitlines() if line.startswith("measured ")]
    assert len(looks) == 2
    assert "vCenter does not answer, gpuops tries again in 20 min: vc does not answer" in result.stderr
    assert all(observing.EVERY_S - 60 < pause <= observing.EVERY_S for pause in pauses)
    [vcenter] = document(lab, "observe", "status")["vcenters"]
    assert vcenter["gaps"] == []


@pytest.mark.long
def test_a_host_whose_nvidia_smi_cannot_be_asked_is_named_and_the_look_goes_on(lab: Lab, tmp_path: Path) -> None:
    nobody = ("--host-shell", "ssh", "--ssh-known-hosts", str(tmp_path / "nobody"))
    result = lab.run("observe", "--once", *nobody)
    assert result.exit_code == 0
    assert "nvidia-smi was read on 0 of 2 hosts" in result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("nvidia-smi was not read: ")]
    assert len(lines) == 2
    assert "no SSH key of a host is known" in lines[0]
    lab.server.world.clock.advance(1200)
    second_look = lab.run("observe", "--once", *nobody, "--output", "json")
    assert json.loads(second_look.stdout)["hosts_entered"] == 0


@pytest.mark.long
def test_the_target_says_what_is_measured_where_and_whether_hosts_are_asked(
    tmp_path: Path, gpuops: Callable[..., Result]
) -> None:
    place, config = tmp_path / "kept", Path.home() / ".config" / "gpuops" / "config.toml"
    place.mkdir(mode=0o700)
    config.parent.mkdir(parents=True)
    target_text = f"""[targets.prod]
host = "sim:lab"
[targets.prod.measurements]
store_dir = "{place}"
counters = ["cpu.usagemhz.average", "gpu.utilization.average"]
host_shell = "ssh"
ssh_port = 1
"""
    config.write_text(target_text)
    result = gpuops("observe", "--once", "--vcenter", "prod")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("nvidia-smi was not read: ")
    assert "or name another file: ssh_known_hosts of its measurements" in result.stderr
    [vcenter] = stored(place).vcenters
    with Measurements.open(place, "", vcenter.vcenter) as store:
        [span] = store.observed_spans()
        for ref in store.entities(span.begin, span.until):
            series = store.window(ref, VM_COUNTERS, span.begin, span.until)
            kept_counters = {name for name, counters in series.items() if known_steps(counters)}
            assert kept_counters <= {CPU_MHZ, GPU_USE, GPU_MEMORY}, "by its memory a GPU's zero is believed"
            assert CPU_MHZ in kept_counters
    status = json.loads(gpuops("observe", "status", "--vcenter", "prod", "-o", "json").stdout)
    assert status["store"] == str(place / "measurements.sqlite")
    assert "nothing was measured yet" in gpuops("observe", "status", "--vcenter", "sim:lab").stdout
    assert gpuops("observe", "--once", "--host-shell", "none", "--vcenter", "prod").stderr == "", "an option wins"
    for wrong, reason in (
        ('counters = ["cpu.wait"]\n', "counters: 'cpu.wait' is not a counter that gpuops measures"),
        ('store_url = "postgresql://me:secret@db/x"\n', "store_url: this file must not contain a password"),
        ('store_dir = "kept"\n', "store_dir: it is not an absolute path, which cron needs"),
        ('store_dir = "/kept"\nstore_url = "postgresql://db/x"\n', "store_dir and store_url exclude each other"),
        ("fine_day = 7\n", "keys of a target's measurements: store_dir, store_url, counters"),
    ):
        config.write_text(f'[targets.prod]\nhost = "sim:lab"\n[targets.prod.measurements]\n{wrong}')
        refused = gpuops("observe", "status", "--vcenter", "prod")
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 2), refused.stderr
        assert reason in refused.stderr
        assert "secret" not in refused.stderr


def test_steps_are_kept_as_the_target_says_and_an_option_wins(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    retentions: list[Retention | None] = []
    look = observing.observe

    def noted(site: Site, retention: Retention | None = None) -> Cycle:
        retentions.append(retention)
        return look(site, retention)

    opened = opening.open_site

    def open_with_entry(common: CommonOptions) -> Site:
        site = opened(common)
        site.measured = MeasurementSettings(fine_days=35, hourly_days=100)
        return site

    monkeypatch.setattr(opening, "open_site", open_with_entry)
    monkeypatch.setattr(observing, "observe", noted)
    document(lab, "observe", "--once")
    document(lab, "observe", "--once", "--fine-days", "7")
    assert retentions == [Retention(35, 100), Retention(7, 100)]
