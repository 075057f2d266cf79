"""What a night took comes back wherever it is in the morning, and whatever it is called and the policy says by then.

The night is that of the lab. Before its morning people rename, move and mark VMs, and edit the policy's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuops.api import rotate_day, rotate_restore, rotate_resume, rotate_status
from gpuops.config.policy import parse_policy
from gpuops.execute.site import Site
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Outcome, Report
from gpuops.plan.core.steps import ResumeVm
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sample import mostly_long
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML, Wire

NIGHTS: Policy = parse_policy(
    LAB_POLICY.read_text().replace(
        "      folder: vdi\n",
        '      folder: vdi\n      name: "vdi-*"\n      marks: [{attribute: gpuops.owner, value: office}]\n',
    ),
    "of the night",
)
"""It selects by all that people may change before the morning."""

EDITED: Policy = parse_policy(
    """
version: 1
name: lab-night
windows: any
pools:
  - {name: few, parked: true, select: {folder: vdi, name: vdi-07}, idle: {cpu_below_mhz: 500}, owner: none}
ml: {queue: [{vm: ml-02}]}
marker: site.marker
""",
    "edited",
)
"""The lab's policy by the morning: nearly all of its desktops and all of its ML VMs are out, its marker is another."""


def rename_vms(world: World) -> None:
    for vm in world.by_type("VirtualMachine"):
        if vm.name in DESKTOPS | ML:
            vm.rename(f"old-{vm.name}")
            vm.state.name = vm.name


def move_vms(world: World) -> None:
    folders = {folder.name: folder for folder in world.by_type("Folder")}
    for vm in world.by_type("VirtualMachine"):
        if vm.name in DESKTOPS | ML:
            vm.move_to_folder(folders["misc" if "misc" in folders else "vm"])


def folder_renamed(world: World) -> None:
    for folder in world.by_type("Folder"):
        if folder.name in ("vdi", "ml"):
            folder.rename(f"{folder.name}-2027")


def marks_withdrawn(world: World) -> None:
    """The owner takes the second key away, and opts out."""
    names = {field.name: key for key, field in world.custom_fields.fields.items()}
    for vm in world.by_type("VirtualMachine"):
        if vm.name in DESKTOPS:
            vm.set_attribute(names["gpuops.owner"], "")
            vm.set_attribute(names["gpuops.opt-out"], "yes")


def nothing(world: World) -> None:
    """Only the policy is another."""


def everything(world: World) -> None:
    """All of it in one night."""
    for befell in (rename_vms, move_vms, folder_renamed, marks_withdrawn):
        befell(world)


WAYS: dict[str, Callable[[Site], Report]] = {
    "day": lambda site: rotate_day(None, site, apply=True),
    "day --policy": lambda site: rotate_day(EDITED, site, apply=True),
    "restore --vm": lambda site: rotate_restore(EDITED, site, _by_uuid(site), apply=True),
    "resume": lambda site: rotate_resume(site, apply=True),
}


def _by_uuid(site: Site) -> tuple[str, ...]:
    return tuple(f"uuid:{mine.original.uuid}" for mine in rotate_status(site).vms)


class Killed(BaseException):
    """What `kill -9` is to a run."""


def cut_off(site: Site) -> None:
    """A morning that is killed when the first desktop is back."""

    def kill(outcome: Outcome) -> None:
        if isinstance(outcome.step, ResumeVm):
            raise Killed

    site.progress = kill
    with pytest.raises(Killed):
        rotate_day(EDITED, site, apply=True)


@pytest.fixture
def lab_wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(lab, tmp_path / "state", NIGHTS)
    yield wire
    assert wire.aside.wrong == []


@pytest.mark.drawn_cases(3)
@pytest.mark.long
@pytest.mark.parametrize(
    "befell", mostly_long([everything, rename_vms, move_vms, folder_renamed, marks_withdrawn, nothing], [everything])
)
@pytest.mark.parametrize("way", WAYS)
def test_all_of_it_is_back(lab_wire: Wire, way: str, befell: Callable[[World], None]) -> None:
    assert lab_wire.night().exit_code == 0
    befell(lab_wire.server.world)
    if way == "resume":
        lab_wire._with(cut_off)
    assert lab_wire._with(WAYS[way]).exit_code == 0
    if way == "restore --vm":
        assert lab_wire._with(WAYS["day"]).exit_code == 0, "it closes the night"
    assert sum(lab_wire.to_power("poweredOn").values()) == len(DESKTOPS | ML)
    assert sum(lab_wire.to_power("poweredOff").values()) == len(ML)
    lab_wire.check_ledger()
    assert lab_wire.status().vms == ()
    assert not any(vm.attributes.get(key) for vm in lab_wire.server.world.by_type("VirtualMachine")
                   for key, field in lab_wire.server.world.custom_fields.fields.items()
                   if field.name == "gpuops.rotation")  # fmt: skip


@pytest.mark.long
def test_a_desktop_that_was_renamed_and_powered_on_by_hand_is_done_with(lab_wire: Wire) -> None:
    lab_wire.night()
    rename_vms(lab_wire.server.world)
    lab_wire._with(lambda site: rotate_restore(None, site, ("old-vdi-07", "old-ml-09"), apply=True))
    assert {mine.whereabouts for mine in lab_wire.status().vms if mine.original.name == "vdi-07"} == {Whereabouts.BACK}
    assert lab_wire.day().exit_code == 0
    assert lab_wire.status().vms == ()


@pytest.mark.long
def test_without_its_journal_a_desktop_that_left_the_folders_of_the_policy_is_asked_about(
    lab_wire: Wire, tmp_path: Path
) -> None:
    lab_wire.night()
    world = lab_wire.server.world
    folder = next(folder for folder in world.by_type("Folder") if folder.name == "ml")
    next(vm for vm in world.by_type("VirtualMachine") if vm.name == "vdi-08").move_to_folder(folder)
    lab_wire.state_dir = tmp_path / "another machine"
    morning = lab_wire.day()
    assert (morning.exit_code, [refusal.subject for refusal in morning.plan.unmet]) == (4, ["vdi-08"])
    [unreturned] = morning.plan.unmet
    assert unreturned.hint == "gpuops rotate restore --vm vdi-08 --policy FILE"
    reports_shown: list[Report] = []
    policy = lab_wire.policy
    restored = lab_wire._with(
        lambda site: rotate_restore(policy, site, ("vdi-08",), apply=True, consent=reports_shown.append)
    )
    assert restored.exit_code == 0
    assert [report.plan.disruptive for report in reports_shown] == [True]
    assert lab_wire.to_power("poweredOn").keys() >= DESKTOPS
