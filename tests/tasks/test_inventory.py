"""The inventory's variables: what a VM has, which GPU it is of, and idle only where a policy's pool says when."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuops.sim.server import start
from gpuops.tasks.inventory import machines
from gpuops.tasks.reads import vm_gpu_info
from gpuops.tasks.task_connection import ConnectionArguments
from tests.tasks.conftest import Lab
from tests.tasks.test_rotation import POLICY

pytestmark = pytest.mark.long


@pytest.mark.long
def test_vms_with_their_models_roles_and_use(lab: Lab) -> None:
    inventory, warnings = machines(lab.said, policy=POLICY)
    vms = inventory["vms"]
    assert warnings == []
    assert json.loads(json.dumps(inventory)) == inventory
    assert {name: vms[name]["gpu_models"] for name in ("ml-01", "ml-03", "ml-04", "vdi-01")} == {
        "ml-01": ["A100"],
        "ml-03": ["L40S"],
        "ml-04": ["L40S"],
        "vdi-01": ["A40"],
    }
    assert vms["vdi-01"]["gpu_numa_nodes"] == [1]
    assert [vms[name]["gpu_role"] for name in ("vdi-01", "ml-01", "ml-02")] == ["desktop", "ml", None]
    used = {name: vms[name]["gpu_use"] for name in ("vdi-01", "vdi-04", "vdi-05", "vdi-11")}
    assert used == {"vdi-01": "idle", "vdi-04": "busy", "vdi-05": "busy", "vdi-11": "unknown"}
    assert vms["vdi-11"]["gpu_use_because"] == "is not running (suspended)"
    vm_facts = vm_gpu_info(lab.said, vm=vms["ml-01"]["gpu_vm"]).result["vms"][0]
    named = {key: f"gpu_{key}" for key in vm_facts} | {"power": "gpu_power_state"}
    assert {key: vms["ml-01"][named[key]] for key in vm_facts} == vm_facts, "the same facts as the module's"


def test_without_a_policy_nothing_is_called_idle(lab: Lab) -> None:
    vms = machines(lab.said)[0]["vms"]
    assert {vm["gpu_use"] for vm in vms.values()} == {"unknown", "busy"}
    assert vms["vdi-01"]["gpu_use"] == "unknown"
    assert {vm["gpu_role"] for vm in vms.values()} == {None}


@pytest.mark.long
def test_no_fact_is_taken_for_a_wish(lab: Lab) -> None:
    """What a playbook takes for a wish has a name of its own, but for the names that say which VM or host is meant."""
    inventory = machines(lab.said, policy=POLICY)[0]
    facts = {name for kind in inventory.values() for variables in kind.values() for name in variables}
    playbooks = (Path(__file__).resolve().parents[2] / "playbooks").glob("*.yml")
    variable = re.compile(r"(?<!gpuops\.vsphere\.)\bgpu_\w+")  # not the module gpu_cluster
    used_names = {name for path in playbooks for name in variable.findall(path.read_text(encoding="utf-8"))}
    assert facts & used_names == {"gpu_vm", "gpu_name"}


def test_hosts(lab: Lab) -> None:
    hosts = machines(lab.said)[0]["hosts"]
    assert hosts["esx-02.lab"]["gpu_models"] == ["A100D", "A40", "L40S"]
    assert hosts["esx-01.lab"]["gpu_free"]["grid_a100-3-20c"] == 4
    assert hosts["esx-01.lab"]["gpu_numa_nodes"] == [0, 1]


def test_vms_of_one_name_are_told_apart(tmp_path: Path) -> None:
    lab = Path(__file__).resolve().parents[2] / "gpuops" / "sim" / "scenarios" / "lab.yaml"
    twins = lab.read_text(encoding="utf-8").replace(
        "{<<: *ml, first: 2, devices: [{vgpu: grid_a100-2-10c}]}",
        "{<<: *ml, name: ml-01, folder: other, devices: [{vgpu: grid_a100-2-10c}]}",
    )
    scenario = tmp_path / "twins.yaml"
    scenario.write_text(twins, encoding="utf-8")
    with start(str(scenario), clock="stepped") as server:
        connection = ConnectionArguments(
            f"127.0.0.1:{server.port}", None, server.username, server.password, ca_file=server.ca_file
        )
        vms = machines(connection)[0]["vms"]
    assert "ml-01" not in vms
    assert sorted(vm["gpu_path"] for name, vm in vms.items() if name.startswith("ml-01_vm-")) == [
        "/lab-dc/vm/ml/ml-01",
        "/lab-dc/vm/other/ml-01",
    ]
