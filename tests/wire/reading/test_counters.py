"""Performance counters over the wire: the samples of the last while, and what is missing is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from gpuops.model.measurements.measurement import CPU_MHZ, CounterWindow
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading import counters
from gpuops.vsphere.reading.counters import with_counters
from gpuops.vsphere.session import Session

pytestmark = pytest.mark.long

NET: Final = "net.usage.average"
QUARTER_S: Final = 900


def shows(server: SimServer, counters_at: Callable[[datetime], Mapping[tuple[str, str], int]]) -> None:
    """From here on every entity has these counters, by the age of a sample."""
    server.world.counters = lambda entity, moment: counters_at(moment)


def read(session: Session, inventory: Inventory, vm: str, *names: str) -> Mapping[str, CounterWindow]:
    ref = inventory.find_vm(vm).ref
    counters = with_counters(session, inventory, [ref], names, QUARTER_S).vm(ref).counters
    assert counters is not None
    return counters


@pytest.mark.long
def test_a_quarter_of_an_hour_of_a_desktop(session: Session, inventory: Inventory) -> None:
    window = read(session, inventory, "vdi-01", CPU_MHZ, NET)[CPU_MHZ]
    assert window.highest == inventory.find_vm("vdi-01").cpu_usage_mhz
    assert window.asked == inventory.taken_at
    assert window.asked - window.since >= timedelta(seconds=QUARTER_S)
    assert timedelta() <= window.asked - window.until <= timedelta(seconds=counters.SAMPLE_S)


def test_a_vcenter_without_a_performance_manager_has_no_samples(session: Session, inventory: Inventory) -> None:
    session.content.perfManager = None
    assert read(session, inventory, "vdi-01", CPU_MHZ, NET) == {}


@pytest.mark.long
def test_the_highest_sample_counts(lab: SimServer, session: Session, inventory: Inventory) -> None:
    worked = inventory.taken_at - timedelta(minutes=10)
    shows(lab, lambda at: {(CPU_MHZ, ""): 2400 if abs(at - worked) < timedelta(seconds=15) else 40, (NET, ""): 7})
    counters = read(session, inventory, "vdi-01", CPU_MHZ, NET)
    assert {name: window.highest for name, window in counters.items()} == {CPU_MHZ: 2400, NET: 7}


@pytest.mark.long
def test_what_was_before_it_is_not_asked_for(lab: SimServer, session: Session, inventory: Inventory) -> None:
    before = inventory.taken_at - timedelta(seconds=QUARTER_S)
    shows(lab, lambda at: {(CPU_MHZ, ""): 2400 if at <= before else 40})
    assert read(session, inventory, "vdi-01", CPU_MHZ)[CPU_MHZ].highest == 40


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "expected_span", "old"),
    [
        (lambda ago: timedelta(minutes=5) < ago < timedelta(minutes=6), timedelta(minutes=5), timedelta()),
        (lambda ago: ago > timedelta(minutes=7), timedelta(minutes=7), timedelta()),
        (lambda ago: ago < timedelta(minutes=2), timedelta(minutes=15), timedelta(minutes=2)),
    ],
    ids=["a gap", "a late beginning", "an early end"],
)
def test_missing_samples_are_missing(
    lab: SimServer, session: Session, inventory: Inventory, missing: Any, expected_span: timedelta, old: timedelta
) -> None:
    shows(lab, lambda at: {} if missing(inventory.taken_at - at) else {(CPU_MHZ, ""): 0})
    window = read(session, inventory, "vdi-01", CPU_MHZ)[CPU_MHZ]
    sample = timedelta(seconds=counters.SAMPLE_S)
    assert abs(window.asked - window.since - expected_span) <= 2 * sample
    assert abs(window.asked - window.until - old) <= sample


@pytest.mark.long
def test_of_what_vcenter_does_not_have_nothing_is_said(lab: SimServer, session: Session, inventory: Inventory) -> None:
    shows(lab, lambda at: {(CPU_MHZ, "0"): 9, (NET, ""): 3})
    assert set(read(session, inventory, "vdi-01", CPU_MHZ, NET, "gpu.soul.average")) == {NET}, "a core is not the VM"
    shows(lab, lambda at: {})
    assert read(session, inventory, "vdi-01", CPU_MHZ) == {}


@pytest.mark.long
def test_one_that_is_gone_keeps_nobody_from_being_told(lab: SimServer, session: Session, inventory: Inventory) -> None:
    removed_vm, running_vm = inventory.find_vm("ml-07").ref, inventory.find_vm("vdi-01").ref
    session.vm(removed_vm).Destroy_Task()
    lab.world.clock.advance(600)
    observed = with_counters(session, inventory, [removed_vm, running_vm], [CPU_MHZ], QUARTER_S)
    assert observed.vm(removed_vm).counters == {}
    assert set(observed.vm(running_vm).counters or {}) == {CPU_MHZ}


@pytest.mark.long
def test_fifty_are_asked_for_at_once_and_the_names_once(
    session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects: list[str] = []
    answer = session.read

    def count_call(call: Callable[..., Any], *arguments: Any, subject: str = "") -> Any:
        subjects.append(subject)
        return answer(call, *arguments, subject=subject)

    monkeypatch.setattr(session, "read", count_call)
    monkeypatch.setattr(counters, "ENTITIES_PER_CALL", 10)
    with_counters(session, inventory, inventory.vms, [CPU_MHZ], QUARTER_S)
    assert subjects.count("counters") == -(-len(inventory.vms) // 10)
    names = subjects.count("")
    with_counters(session, inventory, inventory.vms, [CPU_MHZ], QUARTER_S)
    assert subjects.count("") == names
