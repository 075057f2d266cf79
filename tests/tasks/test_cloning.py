"""A VM from a template, as a task: foreseen, made once, and looked for by its name whatever became of the reply."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.errors import GpuopsError, OutcomeUnknown, UsageError
from gpuops.sim.trouble.catalogue import rules_of
from gpuops.tasks.answer import Answer
from gpuops.tasks.cloning import vm_clone
from tests.tasks.conftest import Lab


def cloned(lab: Lab, *, apply: bool = True, **options: Any) -> Answer:
    return vm_clone(lab.said, {"vm": "ml-10", "template": "golden", **options}, apply=apply)


SIZED: dict[str, Any] = {
    "host": "esx-02.lab", "folder": "/lab-dc/vm/ml", "datastore": "lab-ds-1", "vcpus": 16, "memory": "128GiB"
}  # fmt: skip


def test_it_is_foreseen_and_made_once(lab: Lab) -> None:
    foreseen = cloned(lab, **SIZED, apply=False)
    assert (foreseen.exit_code, foreseen.result["vm"], lab.effects) == (0, None, [])
    done = cloned(lab, **SIZED)
    same = ("changed", "diff", "because", "reasons")
    assert {key: done.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    vm, (diff,) = done.result["vm"], done.result["diff"]
    assert {key: vm[key] for key in diff["after"] if key != "template"} | {"template": "golden"} == diff["after"]
    assert (vm["path"], vm["devices"], vm["power"]) == ("/lab-dc/vm/ml/ml-10", [], "poweredOff")
    assert (vm["vcpus"], vm["memory_mib"], vm["host"]) == (16, 128 * 1024, "esx-02.lab")
    effects = lab.effects
    again = cloned(lab, **SIZED)
    assert (again.result["changed"], again.result["diff"], lab.effects) == (False, [], effects)
    assert again.result["vm"] == vm


def test_a_refusal_has_every_reason(lab: Lab) -> None:
    answer = cloned(lab, template="ml-07", datastore="slow")
    assert (answer.exit_code, answer.result["changed"], lab.effects) == (3, False, [])
    assert "ml-07: is no template" in answer.message
    assert "'slow'" in answer.message


def test_a_folder_that_is_none_is_named_before_anything_is_done(lab: Lab) -> None:
    for path in ("/lab-dc/vm/nowhere", "/lab-dc/vm/ml/ml-07"):
        with pytest.raises(UsageError, match=f"no folder '{path}'"):
            cloned(lab, folder=path, apply=False)
    with pytest.raises(UsageError, match="is not a size of memory"):
        cloned(lab, memory="64")
    assert lab.effects == []


@pytest.mark.parametrize("fault", ["T1", "T2"])
def test_a_lost_reply_is_no_second_vm(lab: Lab, fault: str) -> None:
    """T1: it did not arrive; T2: it happened, and nobody was told."""
    for rule in rules_of(fault, {"method": "CloneVM_Task", "times": 1}):
        lab.server.world.injector.add(rule)
    with pytest.raises(OutcomeUnknown, match="does not show it yet"):
        cloned(lab)
    with lab.server.world.lock:
        lab.server.world.clock.advance(3600)
    cloned(lab)
    assert cloned(lab).result["changed"] is False
    assert lab.effects == ["CloneVM_Task ml-10"]


def test_what_the_login_lacks_is_said_before_anything_is_done(lab: Lab) -> None:
    authority = lab.server.world.authority
    authority.permissions.clear()
    authority.permit(lab.server.username, authority.add_role("reader", ("System.View", "System.Read")))
    answer = cloned(lab, apply=False)
    assert (answer.exit_code, lab.effects) == (3, [])
    assert "lacks VirtualMachine.Provisioning.DeployTemplate" in answer.message


def test_what_vcenter_refuses_is_its_words(lab: Lab) -> None:
    with pytest.raises(GpuopsError, match="ml"):
        cloned(lab, vm="ml", folder="/lab-dc/vm")  # where a folder is called so
    assert lab.effects == []
