"""A desktop with a whole GPU: its guest shuts down in the evening, an ML VM has the GPU, the morning powers it on."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_plan, rotate_status
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

DESKTOP = """
  - {<<: *direct, name: "cad-{:02}", first: 1, folder: vdi, power: "on", cpu_usage_mhz: 60,
     attributes: {gpuops.owner: office}}
"""
POLICY = """
version: 1
name: cad-night
windows: any
pools:
  - name: cad
    parked: true
    select: {folder: vdi, name: "cad-*"}
    idle: {cpu_below_mhz: 500}
    owner: {attribute: gpuops.owner, value: office}
    directpath: shut-down-guest
ml:
  queue: [{vm: ml-03}]
"""


class Cad:
    """The lab with one more desktop, which has the GPU that ml-03 wants."""

    def __init__(self, server: SimServer, state_dir: Path) -> None:
        self.server = server
        self.state_dir = state_dir
        self.policy = parse_policy(POLICY, "cad")

    def site(self, connection: Connection) -> Site:
        return Site(connection, self.state_dir, wall_clock)

    def night(self) -> Report:
        with Connection(target_of(self.server)) as connection:
            return rotate_night(self.policy, self.site(connection), apply=True)

    def day(self) -> Report:
        with Connection(target_of(self.server)) as connection:
            return rotate_day(None, self.site(connection), apply=True)

    def power(self) -> dict[str, str]:
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
            return {vm.name: str(vm.power) for vm in vms if vm.name in ("cad-01", "ml-03")}


@pytest.fixture
def cad(serve: Callable[[str], SimServer], tmp_path: Path) -> Cad:
    lab = (files("gpuops.sim") / "scenarios" / "lab.yaml").read_text(encoding="utf-8")
    path = tmp_path / "cad.yaml"
    path.write_text(
        lab.replace("  - {<<: *direct, first: 4,", f"{DESKTOP[1:]}  - {{<<: *direct, first: 4,"), encoding="utf-8"
    )
    return Cad(serve(str(path)), tmp_path / "state")


def test_it_gives_its_gpu_for_the_night_and_has_it_in_the_morning(cad: Cad) -> None:
    with Connection(target_of(cad.server)) as connection:
        foreseen = rotate_plan(cad.policy, cad.site(connection))
    [way_back] = foreseen.proofs
    assert [str(seat) for back in way_back.order for seat in back.places] == ["0000:5e:00.0 whole"]
    assert way_back.refusals == ()
    assert cad.night().exit_code == 0
    assert cad.power() == {"cad-01": "poweredOff", "ml-03": "poweredOn"}
    with Connection(target_of(cad.server)) as connection:
        status = rotate_status(cad.site(connection))
    assert {(mine.original.name, mine.original.role.value) for mine in status.away} == {
        ("cad-01", "desktop-off"),
        ("ml-03", "ml"),
    }
    assert cad.day().exit_code == 0
    assert cad.power() == {"cad-01": "poweredOn", "ml-03": "poweredOff"}


def test_without_a_journal_its_marker_alone_brings_it_back(cad: Cad) -> None:
    cad.night()
    cad.state_dir = cad.state_dir.with_name("another machine")
    with Connection(target_of(cad.server)) as connection:
        site = cad.site(connection)
        assert {mine.whereabouts for mine in rotate_status(site, cad.policy).vms} == {Whereabouts.AWAY}
        assert rotate_day(cad.policy, site, apply=True).exit_code == 0
    assert cad.power() == {"cad-01": "poweredOn", "ml-03": "poweredOff"}


def test_nothing_of_it_was_ever_powered_off_hard_or_suspended(cad: Cad) -> None:
    cad.night()
    cad.day()
    methods = {change.method for change in cad.server.world.ledger if change.name == "cad-01"}
    assert not methods & {"PowerOffVM_Task", "SuspendVM_Task", "ResetVM_Task"}
    assert "PowerOnVM_Task" in methods
