"""Nights that once broke an invariant hold: those of `found.yaml`, and a lock VM that is not as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.sim.fault_injection.rule import catalogue, rules_of
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.measuring.stages import LEASE
from tests.nights.playing.night import Nightly
from tests.nights.world.prepared import prepared_site

NIGHTS = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text(encoding="utf-8"))


def event_of(fault: str, rules: dict[str, Any] | None = None, **fields: Any) -> Event:
    """An event of the file; a fault of the simulator has the rules of the catalogue, some of them changed."""
    return Event(fault, rules_of(fault, rules) if fault in catalogue() else (), **fields)


@pytest.mark.quick_cases(11)
@pytest.mark.parametrize(
    "night",
    [pytest.param(night, id=night["about"], marks=[pytest.mark.long] * night.get("long", False)) for night in NIGHTS],
)
def test_a_night_that_broke_holds(night: dict[str, Any]) -> None:
    seed, events = night["seed"], [event_of(**event) for event in night["events"]]
    site = None
    if "prepared" in night:
        site = prepared_site(seed, leased="leased" in night["prepared"], crowded="crowded" in night["prepared"])
    own_events = Nightly(seed).played.events if night.get("own_events") else ()
    played = Nightly(seed, [*events, *own_events], site=site).play()
    assert played.reached or not events, "something struck"
    assert violations(played) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", [pytest.param("V10", id="moved"), pytest.param("V4", id="made anew")])
def test_a_lock_vm_that_is_not_as_it_was_is_known(fault: str) -> None:
    site = prepared_site(1, leased=True, crowded=False)
    night = Nightly(1, [event_of(fault, state=LEASE)], site=site).play()
    assert (fault, LEASE) in night.reached
    assert violations(night) == []
