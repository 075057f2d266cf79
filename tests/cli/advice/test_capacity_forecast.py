"""`gpuops capacity --forecast` as typed: what `observe` counts at its looks, weeks of it, and too little of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.store import Measurements
from gpuops.model.measurements.measurement_settings import Retention
from gpuops.sim.state.vm_state import Power
from tests.cli.conftest import Lab


def forecast_by_profile(lab: Lab, *arguments: str) -> dict[str, Any]:
    forecast = lab.run("capacity", "--forecast", *arguments, "--output", "json")
    assert forecast.exit_code == 0, forecast.output
    answer: dict[str, Any] = json.loads(forecast.stdout)
    return {profile["profile"]: profile for profile in answer["profiles"]} | {"vcenter": answer["vcenter"]}


def weeks(lab: Lab, profile: str, *mosts: int) -> None:
    """The most of each day of so many weeks, the last of which ends now."""
    now = lab.server.world.clock.now()
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    with Measurements.open(default_state_dir(), "", forecast_by_profile(lab)["vcenter"]) as store:
        for back in range(7 * len(mosts)):
            store.note_vgpus(now - timedelta(days=back), {profile: mosts[-1 - back // 7]})


@pytest.mark.long
def test_a_look_counts_running_vgpus_and_the_day_keeps_the_most(lab: Lab) -> None:
    assert lab.run("observe", "--once").exit_code == 0
    first = forecast_by_profile(lab)["nvidia_a40-8q"]
    running = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.state.name.startswith("vdi-")]
    running = [vm for vm in running if vm.state.power is Power.ON]
    assert (first["running"], first["most_in_7_days"], first["days_known"]) == (len(running), len(running), 1)
    assert first["fit"] == 7, "what capacity says"
    with lab.server.world.lock:
        running[0].state.power = Power.OFF
        running[0].power_changed()
    lab.server.world.clock.advance(1200)
    assert lab.run("observe", "--once").exit_code == 0
    after = forecast_by_profile(lab)["nvidia_a40-8q"]
    assert (after["running"], after["most_in_7_days"]) == (len(running) - 1, len(running))
    assert after["growth_per_week"] is None and after["runs_out"] is None


@pytest.mark.long
def test_what_grows_runs_out_and_comes_first(lab: Lab) -> None:
    weeks(lab, "nvidia_a40-8q", 4, 5, 6, 7, 8, 9)
    lab.run("observe", "--once")
    table = lab.run("capacity", "--forecast")
    assert table.exit_code == 0
    rows = table.stdout.splitlines()
    assert rows[2].split()[:5] == ["nvidia_a40-8q", "9", "7", "9", "+1.0"]
    profile = forecast_by_profile(lab, "--profile", "a40-8q")["nvidia_a40-8q"]
    assert profile["runs_out"] == "2026-12-15", "nine and seven times one: in the seventh week after this one"
    assert (profile["error"], profile["naive_error"], profile["tested_days"]) == (0.0, 2.0, 15)
    assert profile["not_before"] == profile["runs_out"] == profile["not_after"]


def test_days_of_a_vm_that_is_gone_stay_counted(lab: Lab) -> None:
    weeks(lab, "nvidia_l40s-24q", 1, 1, 1)
    profile = forecast_by_profile(lab)["nvidia_l40s-24q"]
    assert (profile["running"], profile["fit"], profile["days_known"]) == (0, 0, 21)


@pytest.mark.long
def test_old_days_are_forgotten_like_hours(lab: Lab) -> None:
    weeks(lab, "nvidia_a40-8q", 4, 5)
    now = lab.server.world.clock.now()
    with Measurements.open(default_state_dir(), "", forecast_by_profile(lab)["vcenter"]) as store:
        store.remove_old(now, Retention(fine_days=1, hourly_days=3))
        assert len(store.vgpu_peaks()["nvidia_a40-8q"]) == 4


@pytest.mark.parametrize(
    "options", [["--host", "esx-01*"], ["--cluster", "lab-cluster"], ["--policy", "templates/policy.yaml"]]
)
def test_what_the_history_is_not_kept_by_is_refused(lab: Lab, options: list[str]) -> None:
    refusal = lab.run("capacity", "--forecast", *options)
    assert refusal.exit_code == 2
    assert refusal.stderr.startswith(f"error: --forecast and {options[0]} exclude each other")


@pytest.mark.long
def test_a_profile_that_is_not_there_is_one_line(lab: Lab) -> None:
    refusal = lab.run("capacity", "--forecast", "--profile", "a41-8q")
    assert refusal.exit_code in (2, 3)
    assert "a41-8q" in refusal.stderr and refusal.stdout == ""
