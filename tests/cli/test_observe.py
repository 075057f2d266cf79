"""`gpuops observe` as typed, on the scenario `lab`: what it measures, what stays unknown, gaps, and what is stored."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site
from gpuops.cli import opening
from gpuops.cli.options import CommonOptions
from gpuops.errors import VcenterUnreachable
from gpuops.execute.measurements import observing
from gpuops.execute.measurements.store import Measurements, Step, stored
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.model.measurement import CPU_MHZ, GPU_USE, CounterSeries, Cycle, Retention
from tests.cli.conftest import Lab


def document(lab: Lab, *arguments: str) -> dict[str, Any]:
    result = lab.run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def window(lab: Lab, vm: str, hours: int, *counters: str) -> dict[str, CounterSeries]:
    """What is stored of the hours before now."""
    [found] = [each for each in lab.server.world.by_type("VirtualMachine") if each.state.name == vm]
    now = lab.server.world.clock.now()
    [vcenter] = stored(default_state_dir()).vcenters
    with Measurements.open(default_state_dir(), "", vcenter.vcenter) as store:
        return dict(store.window(found.moid, counters, now - timedelta(hours=hours), now, Step.FINE))


def known(series: CounterSeries) -> int:
    return sum(each is not None for each in series.steps)


@pytest.mark.long
def test_a_day_is_measured_with_its_gaps(lab: Lab) -> None:
    """A day of vCenter's averages, the last hour in full; nobody looks for five hours, then for three days."""
    first = document(lab, "observe", "--once")
    assert (first["kind"], first["vms_measured"] > 5, first["hosts_measured"]) == ("observe", True, 2)
    assert first["filled"]["until"] == first["from"]
    told = window(lab, "vdi-01", 24, CPU_MHZ)[CPU_MHZ].steps
    full = [each for each in told if each is not None and each.highest is not None]
    averages = [each for each in told if each is not None and each.highest is None]
    assert (len(full), {each.covered for each in full}) == (11, {1.0})
    assert len(averages) > 100, "vCenter's own averages, whose highest is unknown"
    assert all(each.average > 0 for each in full)

    assert "nothing to do" in lab.run("observe", "--once").stdout
    lab.server.world.clock.advance(5 * 3600)
    again = document(lab, "observe", "--once")
    assert again["filled"] == {"from": first["until"], "until": again["from"]}
    lab.server.world.clock.advance(3 * 86_400)
    document(lab, "observe", "--once")
    told = window(lab, "vdi-01", 70, CPU_MHZ)[CPU_MHZ].steps
    assert told.count(None) > 45 * 12, "vCenter keeps a day; what was before stays missing"

    status = document(lab, "observe", "status")
    [vcenter] = status["vcenters"]
    assert (status["kind"], vcenter["since"], len(vcenter["gaps"])) == ("observe-status", first["from"], 2)
    text = lab.run("observe", "status").stdout
    assert "steps of 5 min" in text
    assert text.count("not observed") == 2


def test_gpu_use_of_mig_backed_vgpus_is_unknown_and_not_zero(lab: Lab) -> None:
    found = document(lab, "observe", "--once")
    machines = {each.state.name: each.state for each in lab.server.world.by_type("VirtualMachine")}
    backed: set[str] = set()
    sliced: set[str] = set()
    for name, state in machines.items():
        if state.seats:
            (backed if any(seat.type.instance is not None for seat in state.seats) else sliced).add(name)
    assert all(known(window(lab, name, 1, GPU_USE)[GPU_USE]) == 0 for name in backed)
    assert all(known(window(lab, name, 1, GPU_USE)[GPU_USE]) > 0 for name in sliced)
    assert sliced
    assert found["vms_gpu_unknown"] == len(backed)


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
    assert "vCenter is away, tried again in 20 min: vc does not answer" in result.stderr
    assert all(observing.EVERY_S - 60 < each <= observing.EVERY_S for each in pauses)
    [vcenter] = document(lab, "observe", "status")["vcenters"]
    assert vcenter["gaps"] == []


def test_a_host_whose_nvidia_smi_cannot_be_asked_is_named_and_the_look_goes_on(lab: Lab, tmp_path: Path) -> None:
    nobody = ("--host-shell", "ssh", "--ssh-known-hosts", str(tmp_path / "nobody"))
    result = lab.run("observe", "--once", *nobody)
    assert result.exit_code == 0
    assert "the hosts' own nvidia-smi: 0 of 2 hosts" in result.stdout
    said = [line for line in result.stderr.splitlines() if line.startswith("not measured by its nvidia-smi: ")]
    assert len(said) == 2
    assert "no host's key is known" in said[0]
    lab.server.world.clock.advance(1200)
    again = lab.run("observe", "--once", *nobody, "--output", "json")
    assert json.loads(again.stdout)["hosts_entered"] == 0
