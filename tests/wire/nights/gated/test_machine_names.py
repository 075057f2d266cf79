"""Nights where the broker and vCenter name a machine in different ways: no desktop of a connected user is suspended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.api import Site, rotate_night
from gpuops.config.policy import parse_policy
from gpuops.model.desktops.evidence import Source
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Report
from gpuops.sim.horizon_server import VcenterList
from gpuops.sim.state.desktop_people import RecordForm
from tests.wire.nights.gated.gates import AT_MOST, POLICY, Gated

PARKED: Policy = parse_policy(
    POLICY.text.replace("broker: horizon\n", "").replace("parked: false", "parked: true"), "of the tests"
)
USED = ("vdi-001", "vdi-002", "vdi-006")
"""The first that a night takes here."""
CERTAIN: tuple[RecordForm, ...] = (
    RecordForm.AS_IN_VCENTER,
    RecordForm.NO_PATH,
    RecordForm.OTHER_CASE,
    RecordForm.UNESCAPED,
    RecordForm.NO_VCENTER,
)
"""Forms by which a machine is found for certain where the pod has one vCenter."""
PODS: dict[str, tuple[RecordForm, VcenterList, bool]] = {
    **{form.value: (form, VcenterList.WITH_UUIDS, False) for form in RecordForm},
    "a second vCenter": (RecordForm.AS_IN_VCENTER, VcenterList.WITH_UUIDS, True),
    **{
        f"a second vCenter, {vcenter_list.value}": (RecordForm.AS_IN_VCENTER, vcenter_list, True)
        for vcenter_list in VcenterList
    },
    "a second vCenter, no vCenter told": (RecordForm.NO_VCENTER, VcenterList.WITH_UUIDS, True),
    "a second vCenter, no path": (RecordForm.NO_PATH, VcenterList.WITH_UUIDS, True),
    "a rebuilt vCenter": (RecordForm.AS_IN_VCENTER, VcenterList.OLD_UUID, False),
    "vCenters that may not be read": (RecordForm.AS_IN_VCENTER, VcenterList.FORBIDDEN, False),
}
FOUND = {name for name, (form, vcenter_list, second) in PODS.items() if form in CERTAIN and not second} - {
    "a rebuilt vCenter"
} | {"a second vCenter", "a second vCenter, with-uuids", "a second vCenter, no path"}
"""Pods whose machines are found for certain, so that a gated night takes desktops there."""


def prepare(vdi: Gated, pod: str) -> None:
    """Users who read are connected to the first desktops; the broker names its machines in the way of the case."""
    form, vcenter_list, second = PODS[pod]
    with vdi.server.world.lock:
        vdi.pod.vcenter_list, vdi.pod.second_vcenter = vcenter_list, second
        vdi.pod.forms = {vm.moid: form for _, vm in vdi.pod.machines()}
    for name in USED:
        vdi.use(name)


def night(vdi: Gated, policy: Policy) -> Report:
    """Run a night of a target whose broker also reports sessions, as a real one does."""

    def run(site: Site) -> Report:
        assert site.gates is not None
        site.sources = {Source.BROKER: site.gates}
        return rotate_night(policy, site, apply=True)

    return vdi.run(run)


@pytest.mark.drawn_cases(4)
@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("pod", PODS)
def test_no_night_suspends_the_desktop_of_a_connected_user(vdi: Gated, pod: str) -> None:
    prepare(vdi, pod)
    report = night(vdi, PARKED)
    assert not set(USED) & vdi.suspended
    assert (len(vdi.suspended) == AT_MOST) is (pod in FOUND or not _keeps_every_desktop(pod))
    reasons = {choice.subject: choice.reason for choice in report.plan.choices}
    assert all("session" in reasons[name] for name in USED)


def _keeps_every_desktop(pod: str) -> bool:
    """Whether a session there may be of any desktop of the pool."""
    return PODS[pod][0] is RecordForm.RENAMED


@pytest.mark.long
@pytest.mark.drawn_cases(4)
@pytest.mark.parametrize("pod", PODS)
def test_a_gated_night_takes_desktops_that_are_certainly_a_machine_and_names_the_others(vdi: Gated, pod: str) -> None:
    prepare(vdi, pod)
    report = night(vdi, POLICY)
    assert (len(vdi.suspended), vdi.gated) == (AT_MOST if pod in FOUND else 0, vdi.suspended)
    assert not set(USED) & vdi.suspended
    named = [warning for warning in report.plan.warnings if "not found in this vCenter: " in warning]
    assert bool(named) is (pod not in FOUND)
    if pod not in FOUND:
        assert any("vdi-001" in warning for warning in named)
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.long
def test_desktops_that_the_broker_does_not_know_are_named(vdi: Gated) -> None:
    with vdi.server.world.lock:
        vdi.server.world.desktop_pools = tuple(
            replace(pool, vms=("vdi-00[1-8]", "vdi-0[1-9]?", "vdi-100")) if pool.name == "office" else pool
            for pool in vdi.server.world.desktop_pools
        )
        vdi.pod._pool_names.clear()
    [warning] = [warning for warning in night(vdi, POLICY).plan.warnings if "has no machine" in warning]
    assert warning == "pool office: the connection broker has no machine for vdi-009"


def test_a_session_that_begins_on_a_machine_of_another_name_keeps_the_desktop_at_the_last_look(vdi: Gated) -> None:
    """The user comes after the plan; the machine's path is an old one."""
    with vdi.server.world.lock:
        vdi.pod.forms = {vm.moid: RecordForm.MOVED for _, vm in vdi.pod.machines()}

    def consent(report: Report) -> None:
        for name in USED:
            vdi.use(name)

    def run(site: Site) -> Report:
        assert site.gates is not None
        site.sources = {Source.BROKER: site.gates}
        return rotate_night(PARKED, site, apply=True, consent=consent)

    vdi.run(run)
    assert vdi.suspended and not set(USED) & vdi.suspended
