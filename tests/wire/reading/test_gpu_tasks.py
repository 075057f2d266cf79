"""Which tasks of others vCenter tells that may have changed what is on GPUs, over real SOAP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from gpuops.execute.steps.task_history import TOO_MANY, TaskHistory
from gpuops.model.vcenter.task import GpuTask
from gpuops.sim.core.call import Call
from gpuops.sim.core.object_store import somebody
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


def tasks_since(vcenter: Connection, since: datetime) -> Sequence[GpuTask] | str:
    """What a run that has asked for nothing yet gets to know."""
    return TaskHistory(vcenter).since(since, vcenter.inventory())


def begun(server: SimServer, description_id: str, call: Call | None = None) -> str:
    """The VM (ref) of a task of this id that somebody else has begun just now."""
    world = server.world
    vm = next(each for each in world.by_type("VirtualMachine") if each.display_name == "ml-01")
    with world.lock:
        world.tasks.start(call or somebody(world, "Task"), "Task", vm, 5, description_id=description_id)
    return vm.moid


@pytest.mark.parametrize(
    "description_id",
    [
        "VirtualMachine.powerOn",
        "VirtualMachine.revertToCurrentSnapshot",
        "vm.Snapshot.revert",
        "VirtualMachine.instantClone",
        "Datacenter.powerOnMultiVm",
        "Datacenter.powerOnMultiVM",
        "Datacenter.ExecuteVmPowerOnLRO",
        "Drm.ExecuteVmPowerOnLRO",
        "Drm.ExecuteVMotionLRO",
    ],
)
def test_starts_and_moves_of_people_and_of_drs_are_told(lab: SimServer, description_id: str) -> None:
    with Connection(target_of(lab)) as vcenter:
        since = vcenter.inventory().taken_at
        vm = begun(lab, description_id)
        tasks = tasks_since(vcenter, since)
        assert not isinstance(tasks, str)
        [told] = tasks
        assert (told.ref, told.own) == (vm, False)
        assert told.queued >= since
        assert tasks_since(vcenter, since + timedelta(hours=1)) == []


def test_what_changes_no_gpu_is_not(lab: SimServer) -> None:
    with Connection(target_of(lab)) as vcenter:
        since = vcenter.inventory().taken_at
        for description_id in ("VirtualMachine.reconfigure", "VirtualMachine.createSnapshot", "Drm.Other"):
            begun(lab, description_id)
        assert tasks_since(vcenter, since) == []


def test_a_full_page_tells_nothing(lab: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose tasks come after it nobody knows."""
    monkeypatch.setattr("gpuops.vsphere.writing.lost_replies._MOST", 3)
    with Connection(target_of(lab)) as vcenter:
        since = vcenter.inventory().taken_at
        for _ in range(2):
            begun(lab, "VirtualMachine.createSnapshot")
        assert tasks_since(vcenter, since) == []
        begun(lab, "VirtualMachine.createSnapshot")
        assert tasks_since(vcenter, since) == TOO_MANY
