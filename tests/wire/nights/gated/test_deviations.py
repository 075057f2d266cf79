"""Nights with a broker that goes by other rules than the assumed ones: no user is kept away from a desktop for good."""

from __future__ import annotations

import pytest

from gpuops.api import Site, assumptions, catalog_of, rotate_night
from gpuops.api.first_contact import first_contact
from gpuops.config.policy import parse_policy
from gpuops.model.assumption import Standing
from gpuops.model.desktops.evidence import Source
from gpuops.plan.core.plan import Report
from gpuops.plan.doctor.assumptions import judge_assumptions
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import recreate
from gpuops.sim.scenario.deviations import deviate
from tests.wire.nights.gated.gates import POLICY, Gated


@pytest.mark.long
def test_a_machine_in_maintenance_that_is_not_shown_as_such_is_opened(vdi: Gated) -> None:
    deviate(vdi.server.world, ["broker-maintenance"])
    vdi.night()
    assert vdi.gated == vdi.suspended != set()
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.long
def test_it_is_opened_by_its_marker_alone(vdi: Gated) -> None:
    deviate(vdi.server.world, ["broker-maintenance"])
    vdi.night()
    vdi.state_dir = vdi.state_dir.with_name("another")
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), set())


@pytest.mark.long
def test_a_second_night_holds_it_too(vdi: Gated) -> None:
    deviate(vdi.server.world, ["broker-maintenance"])
    vdi.night()
    suspended = vdi.suspended
    vdi.night()
    assert vdi.gated == suspended == vdi.suspended
    vdi.day()
    vdi.nothing_is_left()


def test_a_desktop_whose_agent_does_not_answer_is_not_taken(vdi: Gated) -> None:
    """Its user may be there, although no list has the session."""
    deviate(vdi.server.world, ["broker-no-agent"])
    name = "vdi-001"
    vdi.use(name)
    vdi.pod.without_agent.add(vdi.vm(name).moid)
    night = vdi.night()
    assert vdi.suspended
    assert name not in vdi.suspended
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert "agent" in reasons[name]


def test_without_a_gate_a_desktop_whose_agent_does_not_answer_is_not_taken_either(vdi: Gated) -> None:
    """The policy names no broker, and its pool does not require what the broker tells: the target has one."""
    deviate(vdi.server.world, ["broker-no-agent"])
    name = "vdi-001"
    vdi.use(name)
    vdi.vm(name).state.cpu_usage_mhz = 60
    vdi.pod.without_agent.add(vdi.vm(name).moid)
    text = POLICY.text.replace("broker: horizon\n", "").replace("parked: false", "parked: true")
    policy = parse_policy(text, "of the tests")

    def night(site: Site) -> Report:
        assert site.gates is not None
        site.sources, site.gates = {Source.BROKER: site.gates}, None
        return rotate_night(policy, site, apply=True)

    report = vdi.run(night)
    assert vdi.suspended
    assert name not in vdi.suspended
    reasons = {choice.subject: choice.reason for choice in report.plan.choices}
    assert "agent" in reasons[name]


@pytest.mark.long
def test_a_machine_that_is_provisioned_anew_in_maintenance_is_named(vdi: Gated) -> None:
    """Its VM is another one than the night took, so nothing is changed at it."""
    deviate(vdi.server.world, ["broker-new-machine"])
    vdi.night()
    name = min(vdi.suspended)
    with vdi.server.world.lock:
        recreate(vdi.vm(name), Rule(Effect.HAPPEN))
    day = vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {name})
    reasons = {choice.subject: choice.reason for choice in day.plan.choices}
    assert "the broker may have a machine of its name in maintenance" in reasons[name]


@pytest.mark.long
def test_a_first_contact_reads_the_broker(vdi: Gated) -> None:
    """A suspended machine that it shows in maintenance confirms the rule."""
    vdi.night()

    def look(site: Site) -> None:
        site.broker = lambda: vdi.target
        contact = first_contact(site, site.vcenter.inventory())
        assert contact.unread == ()
        assert len(contact.machines) > len(vdi.gated)
        rows = judge_assumptions(assumptions().values(), contact, catalog_of(contact.inventory))
        [row] = [row for row in rows if row.row.id == "broker-maintenance"]
        assert row.standing is Standing.CONFIRMED

    vdi.run(look)  # type: ignore[arg-type]
