"""A cold move is planned only where it can be done: the files must be seen there, and a vApp's member stays in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.model.vcenter.target import Target
from gpuops.plan.core.plan import Report
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import MoveMode
from gpuops.sim.objects.compute_resource import VirtualApp
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection

pytestmark = pytest.mark.long

REQUEST = Attach(vm="ml-08", profile="a100-3-20c", move=MoveMode.COLD)
"""ml-08 is on esx-02, and only esx-01 has the profile."""


def find_entity(lab: SimServer, kind: str, name: str) -> Any:
    return next(entity for entity in lab.world.by_type(kind) if entity.display_name == name)


def attach(target: Target, state_dir: Path, request: Attach = REQUEST) -> Report:
    with Connection(target) as vcenter:
        return run(request, Site(vcenter, state_dir, wall_clock), apply=True)


def test_a_host_that_sees_the_files_takes_the_vm(lab: SimServer, lab_target: Target, tmp_path: Path) -> None:
    assert attach(lab_target, tmp_path).exit_code == 0
    assert [change.method for change in lab.world.ledger] == ["RelocateVM_Task", "ReconfigVM_Task"]


def test_a_device_that_only_another_host_has_is_looked_for_there(
    lab: SimServer, lab_target: Target, tmp_path: Path
) -> None:
    report = attach(lab_target, tmp_path, Attach(vm="ml-07", device=("0000:5e:00.0",), move=MoveMode.COLD))
    assert report.exit_code == 0
    assert [change.method for change in lab.world.ledger] == ["RelocateVM_Task", "ReconfigVM_Task"]


def test_a_host_that_does_not_see_the_files_is_refused_naming_the_datastore(
    lab: SimServer, lab_target: Target, tmp_path: Path
) -> None:
    """The simulator refuses the move as vCenter does; the plan knows before anything is done."""
    host = find_entity(lab, "HostSystem", "esx-01.lab")
    host.state.datastores = ()
    host.touch("datastore")
    report = attach(lab_target, tmp_path)
    assert report.exit_code == 3
    assert "esx-01.lab: does not see datastore lab-ds-1, where files of ml-08 are" in map(str, report.plan.rejections)
    assert len(lab.world.ledger) == 0


def test_a_member_of_a_vapp_is_known_by_it(lab: SimServer, lab_target: Target, tmp_path: Path) -> None:
    vm = find_entity(lab, "VirtualMachine", "ml-08")
    vapp = VirtualApp(lab.world, "resgroup-v901", "trainers", lab.world.get(vm.state.pool), vm.state.folder)
    lab.world.register(vapp)
    vapp.take_in(vm)
    with Connection(lab_target) as vcenter:
        inventory = vcenter.inventory()
        member = inventory.find_vm("ml-08")
        assert (member.vapp, member.path) == ("trainers", "/lab-dc/vm/ml/trainers/ml-08")
        assert inventory.find_vm("/lab-dc/vm/ml/trainers/ml-08") == member
        assert inventory.find_vm("ml-07").vapp is None
        observed = vcenter.observe(inventory, [member.ref]).vm(member.ref)
        assert (observed.vapp, observed.path) == (member.vapp, member.path)
    assert attach(lab_target, tmp_path).exit_code == 0, "within the cluster the vApp comes along"
    assert vm.state.pool == vapp.moid


def test_another_cluster_is_no_place_for_a_member_of_a_vapp(serve: Any, lab_target: Target, tmp_path: Path) -> None:
    with Connection(lab_target) as vcenter:
        inventory = vcenter.inventory()
    member, target = inventory.find_vm("ml-08"), inventory.find_host("esx-01")
    inventory = inventory.with_hosts([replace(target, cluster="domain-c99")]).with_vm(replace(member, vapp="trainers"))
    from gpuops.execute.site import catalog_of

    plan = REQUEST.plan(inventory, catalog_of(inventory), inventory.taken_at)
    assert "esx-01.lab: is outside the cluster of vApp trainers: ml-08 would leave the vApp" in map(
        str, plan.rejections
    )
