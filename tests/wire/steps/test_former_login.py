"""Whose start it was, for a login that goes on where another login of gpuops was cut off."""

from __future__ import annotations

from dataclasses import replace

from gpuops.model.vcenter.target import Secret
from gpuops.plan.core.steps import PowerOnVm
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of


def test_a_start_of_the_former_login_is_known_by_the_name_that_was_typed(lab: SimServer) -> None:
    """vCenter shows a user as `DOMAIN\\user`, and people type `user@domain`."""
    displayed, typed = "VSPHERE.LOCAL\\first", "first@vsphere.local"
    lab.world.sessions.passwords[displayed] = "first"
    with (
        Connection(replace(target_of(lab), username=displayed, password=Secret("first"))) as former,
        Connection(target_of(lab)) as now,
    ):
        inventory = former.inventory()
        [vm] = [vm for vm in inventory.vms.values() if vm.name == "ml-06"]
        start, since = PowerOnVm(vm.ref), inventory.taken_at
        task = former.submit(start, inventory, "gpuops-1-1")
        assert task is not None
        for login, is_own in (("", False), (typed, True), ("second@vsphere.local", False)):
            found_task = now.find_task(start, since, login)
            assert found_task is not None and found_task.foreign is not is_own
            assert now.started_by_this_login(vm.ref, since, login) is is_own
        [end] = former.wait([task], 600)
    assert end.error is None
