"""Check mode predicts what a run then does, field by field; a second run changes nothing; a refusal has its reasons.

The cases are what users of other collections trip over: absent twice, present twice, two equal profiles, a VM that is
suspended, names that several VMs carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from gpuops.errors import GpuopsError, UsageError, VmAmbiguous, VmNotFound
from gpuops.sim.server import start
from gpuops.sim.state.vm_state import DvxBacking, PciDevice, SriovBacking, StaticBacking
from gpuops.sim.wire import sim_client
from gpuops.tasks.changes import vm_gpu, vm_gpus
from gpuops.tasks.perform import TaskResult
from gpuops.tasks.reads import host_gpu_info, vm_gpu_info
from gpuops.tasks.task_connection import ConnectionArguments
from gpuops.vsphere.connection import Connection
from tests.sim.operations.mixed import CARD, mixed_lab
from tests.tasks.conftest import Lab

pytestmark = pytest.mark.long


def set_gpu(lab: Lab, vm: str, *, present: bool = True, apply: bool = True, **options: Any) -> TaskResult:
    return vm_gpu(lab.said, state="present" if present else "absent", vm=vm, **options, apply=apply)


def vm_facts(lab: Lab, vm: str) -> Any:
    return vm_gpu_info(lab.said, vm=vm).result["vms"][0]


def foretold_part(answer: TaskResult) -> Any:
    """What a task returns, without the time it took and what only a run has."""
    document = json.loads(json.dumps(answer.result))
    for key in ("read_at", "applied", "outcomes"):
        del document["plan"][key]
    return document


PRESENT = [
    ("ml-07", {"profile": "a100-3-20c"}),
    ("ml-08", {"profile": "a40-48c", "power": "on"}),
    ("ml-02", {"profile": "a100-3-20c", "replace": "a100-2-10c"}),
    ("ml-07", {"profile": "a40-48c", "move": "cold"}),
    ("ml-08", {"device_group": "Nvidia:2@grid_a100d-80c%NVLink"}),
]


@pytest.mark.parametrize(("vm", "options"), PRESENT)
def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab, vm: str, options: dict[str, Any]) -> None:
    before = vm_facts(lab, vm)
    foreseen = set_gpu(lab, vm, apply=False, **options)
    assert foreseen.message == ""
    assert lab.effects == [], "check mode changes nothing"
    applied = set_gpu(lab, vm, **options)
    assert applied.exit_code == 0
    assert foretold_part(applied) == foretold_part(foreseen)
    assert vm_facts(lab, vm) == applied.result["vm"]
    (diff,) = applied.result["diff"]
    assert diff["after_header"] == vm
    assert {key: before[key] for key in diff["before"]} == diff["before"]
    assert {key: applied.result["vm"][key] for key in diff["after"]} == diff["after"]
    effects = lab.effects
    repeated = set_gpu(lab, vm, **options)
    assert (repeated.result["changed"], repeated.result["diff"], repeated.exit_code) == (False, [], 0)
    assert repeated.result["because"]
    assert lab.effects == effects


def test_what_was_just_read_back_is_not_read_again(lab: Lab, mocker: MockerFixture) -> None:
    looks = mocker.spy(Connection, "observe")
    applied = set_gpu(lab, "ml-07", profile="a100-3-20c", power="on")
    assert len(looks.call_args_list) == 3, "before the change, between it and the start, after the start"
    assert applied.result["vm"] == vm_facts(lab, "ml-07")


def test_absent_predicts_restores_and_is_nothing_the_second_time(lab: Lab) -> None:
    before = vm_facts(lab, "ml-07")
    set_gpu(lab, "ml-07", profile="a100-3-20c", count=1)
    foreseen = set_gpu(lab, "ml-07", present=False, profile="a100-3-20c", apply=False)
    removed = set_gpu(lab, "ml-07", present=False, profile="a100-3-20c")
    assert foretold_part(removed) == foretold_part(foreseen)
    assert removed.result["changed"]
    assert vm_facts(lab, "ml-07") == removed.result["vm"] == before, "nothing of attach is left"
    assert set_gpu(lab, "ml-07", present=False, profile="a100-3-20c").result["changed"] is False
    assert set_gpu(lab, "ml-07", present=False, all=True).result["changed"] is False


def test_one_of_two_equal_profiles_goes(lab: Lab) -> None:
    set_gpu(lab, "ml-08", profile="a100d-40c", count=2)
    removed = set_gpu(lab, "ml-08", present=False, profile="a100d-40c", count=1)
    assert removed.result["vm"]["profiles"] == ["grid_a100d-40c"]


def test_a_refusal_has_every_reason_and_changes_nothing(lab: Lab) -> None:
    answer = set_gpu(lab, "legacy", profile="a100-3-20c")
    assert (answer.exit_code, answer.result["changed"], answer.result["diff"]) == (3, False, [])
    assert "needs EFI, BIOS there" in answer.message
    assert answer.result["reasons"] == [answer.message.removeprefix("refused, nothing changed: ")]
    assert lab.effects == []


def test_a_suspended_vm_is_not_touched(lab: Lab) -> None:
    answer = set_gpu(lab, "vdi-11", present=False, all=True, power="cycle")
    assert (answer.exit_code, answer.result["changed"]) == (3, False)
    assert "suspended" in answer.message


@pytest.mark.parametrize(
    ("vm", "present", "options", "error", "message"),
    [
        ("twin", True, {"profile": "a100-3-20c"}, VmAmbiguous, "2 VMs are named 'twin'"),
        ("ml-70", True, {"profile": "a100-3-20c"}, VmNotFound, "did you mean ml-09"),
        ("moid:vm-0", False, {"all": True}, VmNotFound, "no VM 'moid:vm-0'"),
        ("ml-07", True, {}, UsageError, "exactly one of"),
        ("ml-07", False, {}, UsageError, "exactly one of"),
        ("ml-07", True, {"profile": "a100-3-20c", "count": 0}, UsageError, "--count 0"),
        ("ml-07", True, {"all": True}, UsageError, "all cannot be used with state=present"),
        ("ml-07", False, {"all": True, "move": "cold"}, UsageError, "move cannot be used with state=absent"),
        ("ml-07", True, {"device": ["nonsense"]}, UsageError, "nonsense"),
    ],
)
def test_what_means_nothing_is_one_line(
    lab: Lab, vm: str, present: bool, options: dict[str, Any], error: type[GpuopsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        set_gpu(lab, vm, present=present, **options)
    assert lab.effects == []


def test_a_vgpu_and_a_whole_gpu_in_one_vm_are_told_apart(lab: Lab) -> None:
    set_gpu(lab, "ml-08", profile="a40-48c")
    with_both = set_gpu(lab, "ml-08", device=["0000:5e:00.0"], add=True)
    assert with_both.result["vm"]["devices"] == ["vGPU nvidia_a40-48c", "DirectPath 0000:5e:00.0"]
    assert set_gpu(lab, "ml-08", profile="a40-48c", add=True).result["changed"] is False
    with_one = set_gpu(lab, "ml-08", present=False, profile="a40-48c")
    assert with_one.result["vm"]["devices"] == ["DirectPath 0000:5e:00.0"]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Lab]:
    """The lab with `mixed`, which has an SR-IOV network card, a whole GPU and a vGPU, and `carded` with the card."""
    with start(mixed_lab(tmp_path), clock="stepped") as server:
        path = tmp_path / "mixed.json"
        sim_client.write(path, sim_client.of(server))
        yield Lab(server, ConnectionArguments(hostname=f"sim@{path}"))
        assert list(server.world.bugs) == []


def nics(lab: Lab, name: str) -> list[object]:
    """The network cards of the VM that lead to a port of the host, as vCenter has them."""
    vm = next(machine for machine in lab.server.world.by_type("VirtualMachine") if machine.name == name)
    return [device for device in vm.state.devices if isinstance(device.backing, SriovBacking)]


def test_a_vgpu_a_whole_gpu_and_a_network_card_in_one_vm_are_told_apart(mixed: Lab) -> None:
    nic, (whole, eighth) = f"other device {CARD}", ("DirectPath 0000:5e:00.0", "vGPU nvidia_a40-8q")
    before = nics(mixed, "mixed")
    assert len(before) == 1
    assert vm_facts(mixed, "mixed")["devices"] == [whole, eighth, nic]
    assert set_gpu(mixed, "mixed", profile="a40-8q", add=True).result["changed"] is False
    foreseen = set_gpu(mixed, "mixed", profile="a40-24c", replace="a40-8q", add=True, power="on", apply=False)
    applied = set_gpu(mixed, "mixed", profile="a40-24c", replace="a40-8q", add=True, power="on")
    assert (applied.exit_code, foretold_part(applied)) == (0, foretold_part(foreseen)), applied.message
    assert sorted(applied.result["vm"]["devices"]) == sorted([nic, whole, "vGPU nvidia_a40-24c"])
    with_vgpu = set_gpu(mixed, "mixed", present=False, device=["0000:5e:00.0"], power="cycle")
    assert with_vgpu.result["vm"]["devices"] == ["vGPU nvidia_a40-24c", nic]
    none = set_gpu(mixed, "mixed", present=False, all=True, power="cycle")
    assert (none.exit_code, none.result["vm"]["devices"], none.result["vm"]["power"]) == (0, [nic], "poweredOn")
    assert set_gpu(mixed, "mixed", present=False, all=True).result["changed"] is False
    assert nics(mixed, "mixed") == before, "the network card is as it was"


def test_a_network_card_that_needs_the_reservation_keeps_it(mixed: Lab) -> None:
    before = vm_facts(mixed, "carded")
    assert before["all_memory_reserved"] is True
    set_gpu(mixed, "carded", device=["0000:5e:00.0"], power="on")
    detached = set_gpu(mixed, "carded", present=False, all=True, power="cycle")
    assert (detached.exit_code, detached.message) == (0, "")
    assert vm_facts(mixed, "carded") == {**before, "power": "poweredOn"}


def carrying(lab: Lab, name: str, *backings: StaticBacking | DvxBacking) -> None:
    """That VM has these passthrough devices, and no others."""
    world = lab.server.world
    with world.lock:
        vm = next(machine for machine in world.by_type("VirtualMachine") if machine.name == name)
        vm.state.devices = tuple(PciDevice(13000 + at, 18 + at, backing) for at, backing in enumerate(backings))
        vm.configuration_changed()


def test_a_vgpu_beside_a_device_of_another_maker(lab: Lab) -> None:
    carrying(lab, "ml-08", DvxBacking("com.example.vdpa"))
    other_devices = vm_facts(lab, "ml-08")["devices"]
    assert len(other_devices) == 1
    assert set_gpu(lab, "ml-08", present=False, all=True).result["changed"] is False, "it has no GPU"
    assert set_gpu(lab, "ml-08", profile="a40-48c").result["vm"]["devices"] == [*other_devices, "vGPU nvidia_a40-48c"]
    assert set_gpu(lab, "ml-08", present=False, all=True).result["vm"]["devices"] == other_devices


def test_a_passed_through_function_of_a_nic_is_no_gpu(lab: Lab) -> None:
    """A device of the same type as a GPU by DirectPath I/O, but for its vendor and device id."""
    carrying(lab, "ml-07", StaticBacking("0000:18:00.2", "1018", "esx-01", 0x15B3, "ConnectX-5 Virtual Function"))
    nic = vm_facts(lab, "ml-07")["devices"]
    applied = set_gpu(lab, "ml-07", profile="a100-3-20c")
    assert applied.result["vm"]["devices"] == [*nic, "vGPU grid_a100-3-20c"]
    assert set_gpu(lab, "ml-07", present=False, all=True).result["vm"]["devices"] == nic
    assert set_gpu(lab, "ml-07", present=False, all=True).result["changed"] is False


def test_a_host_that_vcenter_does_not_reach_is_a_reason_and_is_listed(lab: Lab) -> None:
    world = lab.server.world
    with world.lock:
        (host,) = (machine for machine in world.by_type("HostSystem") if machine.name == "esx-01.lab")
        host.state.connection = "notResponding"
    answer = set_gpu(lab, "ml-07", profile="a100-3-20c")
    assert (answer.exit_code, answer.result["changed"]) == (3, False)
    assert "esx-01.lab" in answer.message
    connected = {host_row["name"]: host_row["connected"] for host_row in host_gpu_info(lab.said).result["hosts"]}
    assert connected == {"esx-01.lab": False, "esx-02.lab": True}


def test_many_vms_are_one_plan_and_check_mode_predicts_it(lab: Lab) -> None:
    vms: list[dict[str, Any]] = [
        {"vm": "ml-07", "state": "present", "profile": "a100-3-20c"},
        {"vm": "/lab-dc/vm/ml/ml-08", "state": "present", "profile": "a40-48c", "power": "on"},
        {"vm": "ml-02", "state": "absent", "all": True},
        {"vm": "bare", "state": "absent", "all": True},
    ]
    foreseen = vm_gpus(lab.said, vms, partial=False, apply=False)
    assert (foreseen.exit_code, lab.effects) == (0, [])
    applied = vm_gpus(lab.said, vms, partial=False, apply=True)
    assert (applied.exit_code, applied.result["changed"]) == (0, True)
    assert foretold_part(applied) == foretold_part(foreseen)
    shares = applied.result["vms"]
    assert [share["asked"] for share in shares] == [request["vm"] for request in vms]
    assert [share["changed"] for share in shares] == [True, True, True, False]
    assert shares[3]["because"]
    assert [share["vm"] for share in shares] == [vm_facts(lab, request["vm"]) for request in vms]
    assert len(applied.result["diff"]) == 3
    effects = lab.effects
    repeated = vm_gpus(lab.said, vms, partial=False, apply=True)
    assert (repeated.result["changed"], repeated.result["diff"], lab.effects) == (False, [], effects)


def test_of_many_vms_all_or_those_that_can_be(lab: Lab) -> None:
    vms = [{"vm": name, "state": "present", "profile": "a100-3-20c"} for name in ("legacy", "ml-07", "twin", "ml-70")]
    refused = vm_gpus(lab.said, vms, partial=False, apply=True)
    assert (refused.exit_code, refused.result["changed"], lab.effects) == (3, False, [])
    assert [vm_share["failed"] for vm_share in refused.result["vms"]] == [True, False, True, True]
    partly = vm_gpus(lab.said, vms, partial=True, apply=True)
    assert (partly.exit_code, partly.result["changed"]) == (4, True)
    assert partly.message.startswith("partly done: legacy: ")
    assert [vm_share["changed"] for vm_share in partly.result["vms"]] == [False, True, False, False]
    for share, reason in zip(
        partly.result["vms"], ("needs EFI", None, "2 VMs are named", "no VM 'ml-70'"), strict=True
    ):
        assert share["failed"] is (reason is not None)
        assert reason is None or (reason in share["reasons"][0] and "(next: " in share["reasons"][0])
    with pytest.raises(UsageError, match="all cannot be used with state=present"):
        vm_gpus(lab.said, [{"vm": "ml-07", "state": "present", "all": True}], partial=True, apply=True)


def test_many_vms_are_one_login(lab: Lab, mocker: MockerFixture) -> None:
    opened = mocker.spy(lab.server.world.sessions, "open")
    vms = [{"vm": name, "state": "present", "profile": "a100-3-20c"} for name in ("ml-01", "ml-02", "ml-07")]
    assert vm_gpus(lab.said, vms, partial=True, apply=True).result["changed"]
    assert opened.call_count == 1
