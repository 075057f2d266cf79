"""A VM from a template, as a task: foreseen, made once, and looked for by its name whatever became of the reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.errors import GpuopsError, Refused, UsageError
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.tasks.changes import vm_clone, vm_gpu
from gpuops.tasks.perform import TaskResult
from gpuops.tasks.reads import vm_gpu_info
from gpuops.tasks.task_connection import open_site
from gpuops.vsphere.connection import Connection
from tests.tasks.conftest import Lab

pytestmark = pytest.mark.long


def clone_vm(lab: Lab, *, apply: bool = True, **options: Any) -> TaskResult:
    return vm_clone(lab.said, apply=apply, **{"vm": "ml-10", "template": "golden", **options})


SIZED: dict[str, Any] = {
    "host": "esx-02.lab", "folder": "/lab-dc/vm/ml", "datastore": "lab-ds-1", "vcpus": 16, "memory": "128GiB"
}  # fmt: skip


UNFORESEEN = ("moid", "instance_uuid")
"""What vCenter alone gives a VM."""


def foretold_part(result: Any) -> Any:
    """What a task returns of VMs, without what cannot be foreseen."""
    document = json.loads(json.dumps({key: value for key, value in result.items() if key != "plan"}))
    document["vm"] = {key: value for key, value in document["vm"].items() if key not in UNFORESEEN}
    return document


@pytest.mark.long
def test_it_is_foreseen_and_made_once(lab: Lab) -> None:
    foreseen = clone_vm(lab, **SIZED, apply=False)
    assert (foreseen.exit_code, foreseen.result["there"], lab.effects) == (0, False, [])
    assert [foreseen.result["vm"][key] for key in UNFORESEEN] == [None, None]
    applied = clone_vm(lab, **SIZED)
    assert foretold_part(applied.result) == foretold_part(foreseen.result)
    vm, (diff,) = applied.result["vm"], applied.result["diff"]
    assert {key: vm[key] for key in diff["after"] if key != "template"} | {"template": "golden"} == diff["after"]
    assert (vm["path"], vm["devices"], vm["power"]) == ("/lab-dc/vm/ml/ml-10", [], "poweredOff")
    assert (vm["vcpus"], vm["memory_mib"], vm["host"]) == (16, 128 * 1024, "esx-02.lab")
    effects = lab.effects
    repeated = clone_vm(lab, **SIZED)
    assert (repeated.result["changed"], repeated.result["diff"], lab.effects) == (False, [], effects)
    assert (repeated.result["vm"], repeated.result["there"]) == (vm, True)


@pytest.mark.long
def test_a_return_begins_while_disks_are_copied(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, returned = Connection.wait, list[bool]()

    def wait(connection: Connection, *arguments: Any) -> Any:
        with returning.locked_journal(connection.uuid, alone=True, returning=True, doing="day"):
            returned.append(True)
        return waited(connection, *arguments)

    monkeypatch.setattr(Connection, "wait", wait)
    returning, _ = open_site(lab.said)
    with returning:
        assert clone_vm(lab, **SIZED).result["changed"]
    assert returned


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"profile": "a100d-40c", "numa": "required", "power": "on"},
        {"device": ["0000:5e:00.0"], "power": "on"},
        {"profile": "a100-3-20c", "power": "on"},
    ],
)
def test_its_gpu_is_foreseen_before_it_is_there(lab: Lab, options: dict[str, Any]) -> None:
    clone = clone_vm(lab, **SIZED, apply=False).result["clone"]

    def gpu(apply: bool) -> TaskResult:
        wish = {"vm": "/lab-dc/vm/ml/ml-10", **options}
        return vm_gpu(lab.said, state="present", **wish, apply=apply, after_clone=clone)

    foreseen = gpu(apply=False)
    assert lab.effects == []
    clone_vm(lab, **SIZED)
    looked = gpu(apply=False)
    assert foretold_part(looked.result) == foretold_part(foreseen.result)
    applied = gpu(apply=True)
    assert (applied.exit_code, applied.message) == (foreseen.exit_code, foreseen.message)
    assert foretold_part(applied.result) == foretold_part(foreseen.result)
    assert applied.result["changed"] is (applied.exit_code == 0)
    assert applied.result["vm"]["power"] == ("poweredOn" if applied.exit_code == 0 else "poweredOff")


def test_a_clone_that_is_refused_foresees_no_gpu(lab: Lab) -> None:
    clone = {"vm": "ml-10", "template": "ml-07"}
    with pytest.raises(Refused, match="ml-07: is not a template"):
        vm_gpu(lab.said, state="present", vm="ml-10", profile="a40-8q", apply=False, after_clone=clone)


@pytest.mark.long
def test_a_first_boot_is_waited_for(lab: Lab) -> None:
    clone_vm(lab, **SIZED)
    with pytest.raises(Refused, match="ml-10 is poweredOff: no guest runs in it"):
        vm_gpu_info(lab.said, vm="ml-10", guest="tools", guest_timeout=600)
    vm_gpu(lab.said, state="present", vm="ml-10", profile="a40-8q", power="on", apply=True)
    early = vm_gpu_info(lab.said, vm="ml-10", guest="tools", guest_timeout=10)
    assert (early.exit_code, early.result["guest"]) == (4, {"tools_running": False, "address": None})
    assert early.message == "ml-10: its guest does not run VMware Tools after 10 s (next: look at its console)"
    booted = vm_gpu_info(lab.said, vm="ml-10", guest="address", guest_timeout=600)
    assert (booted.exit_code, booted.result["guest"]["tools_running"]) == (0, True)
    assert booted.result["guest"]["address"].startswith("198.")
    assert booted.result["vms"][0]["power"] == "poweredOn"
    began = lab.server.world.clock.now()
    bare = vm_gpu_info(lab.said, vm="bare", guest="address", guest_timeout=60)
    assert (bare.exit_code, bare.result["guest"]["address"]) == (4, None)
    assert 60 <= (lab.server.world.clock.now() - began).total_seconds() < 90
    with pytest.raises(UsageError, match="guest needs a VM"):
        vm_gpu_info(lab.said, guest="tools")


@pytest.mark.long
def test_a_refusal_has_every_reason(lab: Lab) -> None:
    answer = clone_vm(lab, template="ml-07", datastore="slow")
    assert (answer.exit_code, answer.result["changed"], lab.effects) == (3, False, [])
    assert "ml-07: is not a template" in answer.message
    assert "'slow'" in answer.message


@pytest.mark.long
def test_a_folder_that_is_none_is_named_before_anything_is_done(lab: Lab) -> None:
    for path in ("/lab-dc/vm/nowhere", "/lab-dc/vm/ml/ml-07"):
        with pytest.raises(UsageError, match=f"no folder '{path}'"):
            clone_vm(lab, folder=path, apply=False)
    with pytest.raises(UsageError, match="is not a size of memory"):
        clone_vm(lab, memory="64")
    assert lab.effects == []


@pytest.mark.long
@pytest.mark.parametrize("fault", ["T1", "T2"])
def test_a_lost_reply_is_no_second_vm(lab: Lab, fault: str) -> None:
    """T1: the request did not arrive; T2: it was executed, and the reply was lost."""
    for rule in rules_of(fault, {"method": "CloneVM_Task", "times": 1}):
        lab.server.world.injector.add(rule)
    assert clone_vm(lab).result["changed"]
    assert clone_vm(lab).result["changed"] is False
    assert lab.effects == ["CloneVM_Task ml-10"]


@pytest.mark.long
def test_what_the_login_lacks_is_said_before_anything_is_done(lab: Lab) -> None:
    authority = lab.server.world.authority
    authority.permissions.clear()
    authority.permit(lab.server.username, authority.add_role("reader", ("System.View", "System.Read")))
    answer = clone_vm(lab, apply=False)
    assert (answer.exit_code, lab.effects) == (3, [])
    assert "lacks VirtualMachine.Provisioning.DeployTemplate" in answer.message


@pytest.mark.long
def test_what_vcenter_refuses_is_its_words(lab: Lab) -> None:
    with pytest.raises(GpuopsError, match="ml"):
        clone_vm(lab, vm="ml", folder="/lab-dc/vm")  # where a folder is called so
    assert lab.effects == []
