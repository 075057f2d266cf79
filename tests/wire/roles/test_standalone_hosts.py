"""The privilege to bring a VM into a resource pool is asked of the pool of a standalone host too, before any change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.login import ObjectKind
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.privileges import pool_owner
from gpuops.plan.core.steps import COLD_MOVE, RelocateVm
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.sim.lab import Lab, connect
from tests.wire.conftest import target_of

ALONE = "esx-09.lab"
TO_POOL = "Resource.AssignVMToPool"


@pytest.fixture
def server() -> Iterator[SimServer]:
    """The lab, with one more host that is in no cluster."""
    with SimServer(build("lab")) as server:
        session = connect(server)
        lab = Lab(server.world, session)
        spec = vim.host.ConnectSpec(hostName=ALONE, userName="root", password="any", force=True)
        lab.run(lab.datacenter().hostFolder.AddStandaloneHost_Task(spec, None, True))
        Disconnect(session)
        yield server


def permit(server: SimServer, privileges: set[str]) -> None:
    authority = server.world.authority
    authority.permit(server.username, authority.add_role("mover", privileges))


@pytest.mark.parametrize("may", [False, True])
def test_a_move_to_a_standalone_host_is_refused_before_it_is_sent(server: SimServer, tmp_path: Path, may: bool) -> None:
    permit(server, {*COLD_MOVE, *([TO_POOL] if may else [])})
    with Connection(target_of(server)) as connection, Site(connection, tmp_path / "state", wall_clock) as site:
        inventory = connection.inventory()
        host: Host = inventory.find_host(ALONE)
        vm: Vm = inventory.find_vm("ml-07")
        assert host.cluster is None
        plan = site.check_privileges(Plan(withheld=(RelocateVm(vm.ref, host.ref),)), inventory)
    refusals = [(rejection.subject, rejection.rule, rejection.hint) for rejection in plan.rejections]
    ask = "ask for a role with it on the host, or use a login that has it"
    assert refusals == ([] if may else [(ALONE, f"this login lacks {TO_POOL}", ask)])


def test_a_host_in_a_cluster_leaves_it_to_the_cluster(server: SimServer) -> None:
    with Connection(target_of(server)) as connection:
        inventory = connection.inventory()
    host = inventory.find_host("esx-01.lab")
    assert pool_owner(host) == (ObjectKind.CLUSTER, host.cluster)
    assert pool_owner(replace(host, cluster=None)) == (ObjectKind.HOST, host.ref)
