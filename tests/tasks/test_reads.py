"""What is read is what the command line shows, in JSON's own types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import HostNotFound, PolicyError, UsageError
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.tasks.reads import (
    gpu_capacity_info,
    gpu_placement,
    gpu_readiness_info,
    guest_gpu_info,
    host_gpu_info,
    vm_gpu_info,
)
from gpuops.tasks.task_connection import ConnectionArguments, open_site
from tests.stored_day import BUSY, store_day
from tests.tasks.conftest import Lab

pytestmark = pytest.mark.long


@pytest.mark.long
def test_vms_with_gpus_and_one_without(lab: Lab) -> None:
    vms = vm_gpu_info(lab.said, profile="a40-8q").result["vms"]
    assert [vm["name"] for vm in vms] == [f"vdi-{number:02}" for number in range(1, 13)]
    (bare,) = vm_gpu_info(lab.said, vm="bare").result["vms"]
    assert bare["devices"] == []
    assert len(vm_gpu_info(lab.said).result["vms"]) > len(vm_gpu_info(lab.said, host="esx-01").result["vms"]) > 0


def test_hosts(lab: Lab) -> None:
    result = host_gpu_info(lab.said, host="esx-01.lab").result
    assert json.loads(json.dumps(result)) == result
    (host,) = result["hosts"]
    assert next(gpu["address"] for node in host["numa_nodes"] for gpu in node["gpus"]) == "0000:3b:00.0"
    with pytest.raises(HostNotFound):
        host_gpu_info(lab.said, host="esx-99")


def test_capacity(lab: Lab) -> None:
    capacity = gpu_capacity_info(lab.said, profile="a100-3-20c", host="esx-01*").result["capacity"]
    assert capacity["profile"] == "grid_a100-3-20c"
    assert capacity["clusters"]


@pytest.mark.long
def test_readiness(lab: Lab) -> None:
    readiness = gpu_readiness_info(lab.said, host="esx-01*").result["readiness"]
    (host,) = readiness["hosts"]
    assert (readiness["ready"], host["ready"], host["lost"]["spared"]) == (False, False, True)
    assert any("vgpu.hotmigrate.enabled" in blocker["text"] for blocker in host["blockers"])
    with pytest.raises(UsageError, match="no cluster"):
        gpu_readiness_info(lab.said, cluster="none")


@pytest.mark.long
def test_a_place_for_each_and_every_reason_where_there_is_none(lab: Lab) -> None:
    fits = {"name": "one", "vcpu": 8, "memory": "64GiB", "profile": "a100-3-20c", "count": None}
    answer = gpu_placement(lab.said, requests=[fits], explain=False, pin=None)
    assert (answer.exit_code, answer.result["placement"]["placed"]) == (0, 1)
    huge = {"name": "two", "vcpu": 8, "memory": "64TiB", "profile": "a100-3-20c"}
    answer = gpu_placement(lab.said, requests=[fits, huge])
    assert answer.exit_code == 3
    assert answer.message.startswith("1 of 2 without a place: two: ")
    assert answer.result["placement"]["placed"] == 1


def test_a_place_as_if_gpus_had_a_layout(lab: Lab) -> None:
    layout = f"{Path(__file__).parents[2] / 'templates' / 'mig-layout.yaml'}:balanced"
    request = {"name": "one", "vcpu": 8, "memory": "64GiB", "profile": "a100d-3-40c", "host": "esx-02*"}
    document = gpu_placement(lab.said, requests=[request], mig_layout=layout).result["placement"]
    assert document["placed"] == 1
    assert document["warnings"][0].startswith("as if: 2 GPUs of esx-02.lab with the layout balanced: ")
    second_request = {**request, "name": "two", "host": None}
    placement = gpu_placement(lab.said, requests=[request, second_request], mig_layout=layout).result["placement"]
    assert placement["warnings"][0].startswith("as if: 4 GPUs of esx-01.lab, esx-02.lab with the layout balanced: ")
    with pytest.raises(UsageError, match="mig_layout 'balanced' is not FILE:NAME"):
        gpu_placement(lab.said, requests=[request], mig_layout="balanced")


@pytest.mark.long
def test_requests_are_checked(lab: Lab) -> None:
    with pytest.raises(UsageError, match="either requests or file"):
        gpu_placement(lab.said)
    with pytest.raises(PolicyError, match=r"requests: requests\.0\.memory"):
        gpu_placement(lab.said, requests=[{"name": "x", "vcpu": 1, "memory": "64", "profile": "a"}])


@pytest.mark.long
def test_guests_are_asked_as_the_command_line_asks_them() -> None:
    stacks = ConnectionArguments(hostname="sim:stacks")
    answer = guest_gpu_info(stacks, vm="gpu-ready", framework=["torch>=2.3"], expect=["rdma"]).result
    assert (answer["changed"], answer["guest_check"]["ready"]) == (False, True)
    (guest,) = guest_gpu_info(stacks, vm="gpu-bare").result["guest_check"]["guests"]
    assert {row["check"]: row["state"] for row in guest["rows"]}["driver"] == "fail"
    with pytest.raises(UsageError, match="--ssh-host"):
        guest_gpu_info(stacks, vm="gpu-bare", via="ssh", ssh_host="one")
    with pytest.raises(UsageError, match="needs the policy that defines the pool"):
        guest_gpu_info(stacks, pool="ml")


@pytest.mark.long
def test_sharers_by_numbers_without_a_vcenter() -> None:
    from gpuops.extras.sizing.tasks import gpu_sizing_info

    nobody = ConnectionArguments(hostname="127.0.0.1:1")
    sizing = gpu_sizing_info(nobody, profile="a40-8q", at_most=1.2, sharers=None, busy="20%").result["sizing"]
    assert (sizing["source"], sizing["busy"], sizing["recommended"]["sharers"]) == ("numbers", 0.2, 4)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sharers": 0, "busy": "0.2"}, "--sharers 0 is out of range"),
        ({"vm": "vdi-*", "busy": "0.2"}, "--busy and --vm exclude each other"),
        ({"busy": "0.2", "pool": "vdi"}, "--busy and --pool exclude each other"),
        ({"overlap": "0.2"}, "--overlap needs --busy"),
    ]
    for options, message in cases:
        with pytest.raises(UsageError, match=message):
            gpu_sizing_info(nobody, **options)


@pytest.mark.long
def test_sharers_and_slow_vms_by_what_was_measured(lab: Lab) -> None:
    from gpuops.extras.diagnosis.tasks import gpu_diagnosis_info
    from gpuops.extras.sizing.tasks import gpu_sizing_info

    with pytest.raises(UsageError, match="less than half an hour of vdi-05"):
        gpu_diagnosis_info(lab.said, vm="vdi-05")
    with pytest.raises(UsageError, match="no measurements of vdi-05"):
        gpu_sizing_info(lab.said, vm="vdi-05")
    site, _ = open_site(lab.said)
    with site:
        vcenter = site.vcenter.inventory().vcenter
    store_day(lab.server, default_state_dir(), vcenter, {"vdi-05": {**BUSY, "smi.vgpu.licensed.latest": 0}})
    answer = gpu_diagnosis_info(lab.said, vm="vdi-*", since="1d").result
    [vm] = answer["diagnosis"]["vms"]
    assert json.loads(json.dumps(answer)) == answer
    assert (vm["vm"], vm["suspects"][0]["component"], answer["changed"]) == ("vdi-05", "licence", False)
    sized = gpu_sizing_info(lab.said, vm="vdi-05", at_most=3.0, since="1d").result["sizing"]
    assert (sized["source"], [vm["name"] for vm in sized["vms"]]) == ("history", ["vdi-05"])
