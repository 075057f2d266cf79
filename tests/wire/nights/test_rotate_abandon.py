"""A desktop on a host that never comes back: given up by name, named until it is back; over real SOAP."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.api import (
    Site,
    doctor,
    rotate_abandon,
    rotate_day,
    rotate_init,
    rotate_night,
    rotate_restore,
    rotate_status,
)
from gpuops.config.policy import parse_policy
from gpuops.errors import Refused
from gpuops.model.nights.night_record import Role
from gpuops.plan.core.scope import Scope
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.nights.interrupted.zombie import POLICY
from tests.wire.roles.test_least_privilege import site_of

pytestmark = pytest.mark.long

LAB = parse_policy(POLICY, "lab")


def given_up(site: Site) -> tuple[list[str], list[str]]:
    """What status, and what doctor, names as given up."""
    names_in_status = [
        mine.original.name for mine in rotate_status(site).vms if mine.whereabouts is Whereabouts.GIVEN_UP
    ]
    findings = doctor(site, Scope()).findings
    return names_in_status, [finding.subject for finding in findings if "was given up" in finding.reason]


def set_connection(lab: SimServer, name: str, state: str) -> None:
    [host] = [host for host in lab.world.by_type("HostSystem") if host.display_name == name]
    with lab.world.lock:
        host.state.connection = state
        host.runtime_changed()


def runs(lab: SimServer, name: str) -> bool:
    return any(vm.name == name and vm.state.power is Power.ON for vm in lab.world.by_type("VirtualMachine"))


@pytest.mark.long
def test_a_desktop_on_a_dead_host_is_given_up_and_named_until_it_is_back(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site:
        rotate_init(LAB, site)
        assert rotate_night(LAB, site, apply=True).exit_code == 0
        vms_of_night = {mine.original.name: mine for mine in rotate_status(site).vms}
        names_on_host = sorted(
            name for name, mine in vms_of_night.items() if mine.vm is not None and mine.vm.host == _ref(lab)
        )
        set_connection(lab, "esx-02.lab", "notResponding")
        for _ in range(2):
            assert rotate_day(LAB, site, apply=True).exit_code == 4
        for name in names_on_host:
            abandoned = rotate_abandon(site, name)
            assert abandoned.means[0].endswith("no return waits for it")
        assert rotate_abandon(site, names_on_host[0]).already
        assert rotate_day(LAB, site, apply=True).exit_code == 0
        assert tuple(map(sorted, given_up(site))) == (names_on_host, names_on_host)
        set_connection(lab, "esx-02.lab", "connected")
        desktops = [name for name in names_on_host if name.startswith("vdi-")]
        rotate_day(LAB, site, apply=True)
        assert not any(runs(lab, name) for name in desktops), "a person brings back what a person gave up"
        assert rotate_restore(LAB, site, tuple(names_on_host), apply=True).exit_code == 0
        assert all(runs(lab, name) for name in desktops)
        assert rotate_day(LAB, site, apply=True).exit_code == 0
        assert given_up(site) == ([], [])
        key = lab.world.custom_fields.define("gpuops.rotation")
        assert [vm.name for vm in lab.world.by_type("VirtualMachine") if vm.state.attributes.get(key)] == []


def _ref(lab: SimServer) -> str:
    return next(str(host.moid) for host in lab.world.by_type("HostSystem") if host.display_name == "esx-02.lab")


def test_what_no_night_holds_is_not_given_up(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path) as site, pytest.raises(Refused, match="vdi-01: no night in this machine's journal"):
        rotate_abandon(site, "vdi-01")


@pytest.mark.long
def test_what_its_marker_alone_tells_of_is_given_up_as_an_entry_of_the_journal_is(
    lab: SimServer, tmp_path: Path
) -> None:
    """The journal is lost, and a host with a desktop of the night on it never comes back."""
    with site_of(lab, tmp_path / "lost") as site:
        rotate_init(LAB, site)
        assert rotate_night(LAB, site, apply=True).exit_code == 0
        vms_of_night = {mine.original.name: mine for mine in rotate_status(site).vms}
    names_on_host = sorted(
        name for name, mine in vms_of_night.items() if mine.vm is not None and mine.vm.host == _ref(lab)
    )
    assert {vms_of_night[name].original.role for name in names_on_host} == {Role.DESKTOP, Role.ML}
    with site_of(lab, tmp_path / "new") as site:
        set_connection(lab, "esx-02.lab", "notResponding")
        assert rotate_day(LAB, site, apply=True).exit_code == 4
        before = len(lab.world.ledger)
        for name in names_on_host:
            abandoned = rotate_abandon(site, name, LAB)
            assert abandoned.means[1].startswith("only its marker says that a night took it")
            assert any(f"--vm {name} can still bring it back" in meaning for meaning in abandoned.means), (
                "under the policy of its morning"
            )
        assert len(lab.world.ledger) == before, "nothing is asked of vCenter"
        assert rotate_abandon(site, names_on_host[0], LAB).already
        assert rotate_day(LAB, site, apply=True).exit_code == 0
        assert tuple(map(sorted, given_up(site))) == (names_on_host, names_on_host)
        set_connection(lab, "esx-02.lab", "connected")
        rotate_day(LAB, site, apply=True)
        assert not any(runs(lab, name) for name in names_on_host if name.startswith("vdi-")), (
            "they are left to a person"
        )
        assert all(runs(lab, name) for name in names_on_host if name.startswith("ml-"))
        assert rotate_restore(LAB, site, tuple(names_on_host), apply=True).exit_code == 0
        assert rotate_day(LAB, site, apply=True).exit_code == 0
        assert all(runs(lab, name) for name in names_on_host if name.startswith("vdi-"))
        assert given_up(site) == ([], [])
        key = lab.world.custom_fields.define("gpuops.rotation")
        assert [vm.name for vm in lab.world.by_type("VirtualMachine") if vm.state.attributes.get(key)] == []


def test_giving_up_one_vm_without_the_journal_makes_no_copies_of_the_others(lab: SimServer, tmp_path: Path) -> None:
    """The journal of another machine then has one VM of the night, and not the night: the return stops its ML VMs."""
    with site_of(lab, tmp_path / "lost") as site:
        rotate_init(LAB, site)
        assert rotate_night(LAB, site, apply=True).exit_code == 0
        names = [mine.original.name for mine in rotate_status(site).vms if mine.original.role is Role.DESKTOP]
    with site_of(lab, tmp_path / "another machine") as site:
        assert rotate_abandon(site, names[0], LAB).applied
        standing = {mine.original.name: mine.whereabouts for mine in rotate_status(site, LAB).vms}
        assert {where for name, where in standing.items() if name != names[0]} == {Whereabouts.AWAY}
        assert rotate_day(LAB, site, apply=True).exit_code == 0
    assert [name for name in names if not runs(lab, name)] == [names[0]]
    assert not any(runs(lab, name) for name in standing if name.startswith("ml-"))


@pytest.mark.long
def test_a_marker_under_another_attribute_is_not_taken_for_one(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path / "lost") as site:
        rotate_init(LAB, site)
        assert rotate_night(LAB, site, apply=True).exit_code == 0
        [name, *_] = [mine.original.name for mine in rotate_status(site).vms]
    other_policy = parse_policy(POLICY.replace("marker: gpuops.rotation", "marker: another.attribute"), "other")
    with site_of(lab, tmp_path / "new") as site:
        with pytest.raises(Refused, match=f"{name}: no night in this machine's journal"):
            rotate_abandon(site, name, other_policy)
        assert rotate_abandon(site, name, apply=False).name == name, "the attribute of a policy that names none"
