"""`gpuops rotate adopt` and `clear-marker` as typed."""

from __future__ import annotations

import json

import pytest

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.cli.conftest import LAB_POLICY as POLICY
from tests.cli.conftest import Lab


@pytest.fixture
def lab(lab_by_night: Lab) -> Lab:
    """A night has begun."""
    return lab_by_night


def test_the_night_of_a_vcenter_that_was_rebuilt(lab: Lab) -> None:
    before = json.loads(lab.run("rotate", "status", "--output", "json").stdout)["vcenter"]
    with lab.server.world.lock:
        OUTSIDE_EVENTS["vcenter.rebuilt"].strike(lab.server.world, [], Rule(Effect.HAPPEN, happening="vcenter.rebuilt"))
    assert lab.run("rotate", "day", "--policy", POLICY, "--yes").exit_code == 4
    foreseen = json.loads(lab.run("rotate", "adopt", "--from", before, "--dry-run", "--output", "json").stdout)
    assert (foreseen["kind"], foreseen["from"], foreseen["applied"]) == ("rotate-adopt", before, False)
    unattended = lab.run("rotate", "adopt", "--from", before)
    assert unattended.exit_code != 0, "there is no terminal to ask at"
    adopted = lab.run("rotate", "adopt", "--from", before, "--yes")
    assert (adopted.exit_code, f"of vCenter {before}: adopted" in adopted.stdout.replace("\n", " ")) == (0, True)
    assert lab.run("rotate", "day", "--yes").exit_code == 0
    repeated = lab.run("rotate", "adopt", "--from", before, "--yes")
    assert (repeated.exit_code, "no VM of an open night" in repeated.stderr) == (3, True)


def test_a_marker_that_no_night_left(lab: Lab) -> None:
    refusal = lab.run("rotate", "clear-marker", "--vm", "vdi-07", "--yes")
    assert (refusal.exit_code, "has taken it: its return clears the marker" in refusal.stdout) == (3, True)
    unmarked = lab.run("rotate", "clear-marker", "--vm", "vdi-01", "--yes", "--output", "json")
    assert unmarked.exit_code == 0
    document = json.loads(unmarked.stdout)
    assert (document["kind"], document["because"]) == ("rotate-clear-marker", ["vdi-01: carries no marker"])
