"""What other collections crash on, or do twice: each through ansible-playbook and the module's real entry.

Every task is let fail; none may end in an error that the module did not foresee.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import sim_client
from tests.ansible.conftest import Ansible
from tests.sim.operations.mixed import CARD, mixed_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NIC: Final = f"other device {CARD}"
PAIR: Final = {"vm": "ml-08", "profile": "a100d-40c"}
ALL: Final = {"state": "absent", "all": True}
CHANGED, UNCHANGED, REFUSED, USAGE, ARGUMENTS = "changed", "unchanged", 3, 2, "arguments"
TASKS: Final[tuple[tuple[str, dict[str, Any], str | int, str], ...]] = (
    ("absent without a device", {"vm": "ml-07", **ALL}, UNCHANGED, "has no GPU device"),
    ("present", {"vm": "ml-07", "profile": "a100-3-20c"}, CHANGED, ""),
    ("present twice", {"vm": "ml-07", "profile": "a100-3-20c"}, UNCHANGED, "already"),
    ("absent", {"vm": "ml-07", "profile": "a100-3-20c", "state": "absent"}, CHANGED, ""),
    ("absent twice", {"vm": "ml-07", "profile": "a100-3-20c", "state": "absent"}, UNCHANGED, "nothing to detach"),
    ("a profile that it never had", {"vm": "ml-07", "profile": "a40-8q", "state": "absent"}, UNCHANGED, "nothing"),
    ("two equal profiles", {**PAIR, "count": 2}, CHANGED, ""),
    ("two equal profiles twice", {**PAIR, "count": 2}, UNCHANGED, "already"),
    ("one of two equal profiles", {**PAIR, "count": 1, "state": "absent"}, CHANGED, ""),
    ("one of two equal profiles twice", {**PAIR, "count": 1, "state": "absent"}, UNCHANGED, "no more than 1"),
    (
        "a vGPU beside a whole GPU and a network card",
        {"vm": "mixed", "profile": "a40-24c", "replace": "a40-8q", "add": True},
        CHANGED,
        "",
    ),
    ("the whole GPU beside them", {"vm": "mixed", "device": ["0000:5e:00.0"], "state": "absent"}, CHANGED, ""),
    ("the last GPU beside the network card", {"vm": "mixed", **ALL}, CHANGED, ""),
    ("the network card is no GPU", {"vm": "mixed", **ALL}, UNCHANGED, "has no GPU device"),
    ("present in a suspended VM", {"vm": "vdi-11", "profile": "a40-24q", "replace": "a40-8q"}, REFUSED, "suspended"),
    ("absent in a suspended VM", {"vm": "vdi-11", **ALL}, REFUSED, "suspended"),
    ("what a suspended VM has", {"vm": "vdi-11", "profile": "a40-8q"}, UNCHANGED, "already"),
    ("on a host out of reach", {"vm": "ml-02", "profile": "a100-3-20c", "add": True}, REFUSED, "esx-01.lab"),
    ("off a host out of reach", {"vm": "ml-01", **ALL}, REFUSED, "esx-01.lab"),
    ("two VMs of one name", {"vm": "twin", "profile": "a40-8q"}, USAGE, "/lab-dc/vm/misc/b/twin"),
    ("nobody of that name", {"vm": "ml-70", **ALL}, USAGE, "did you mean"),
    ("an invalid moid", {"moid": "vm-0", **ALL}, USAGE, "no VM 'moid:vm-0'"),
    ("no GPU at all", {"vm": "ml-07"}, USAGE, "exactly one of"),
    ("two kinds at once", {"vm": "ml-07", "profile": "a40-8q", "label": "l40s-ml"}, USAGE, "exactly one of"),
    ("an unknown profile", {"vm": "ml-07", "profile": "x9-1q"}, USAGE, "x9-1q"),
    ("an invalid address", {"vm": "ml-07", "device": ["nonsense"]}, USAGE, "nonsense"),
    ("an invalid count", {"vm": "ml-07", "profile": "a40-8q", "count": -1}, USAGE, "count -1"),
    ("an option of the other state", {"vm": "ml-07", "profile": "a40-8q", "all": True}, USAGE, "state=absent"),
    ("no VM at all", {"profile": "a40-8q"}, ARGUMENTS, "one of the following is required"),
    ("a VM by two names", {"vm": "ml-07", "moid": "vm-1", **ALL}, ARGUMENTS, "mutually exclusive"),
    ("an invalid word", {"vm": "ml-07", "profile": "a40-8q", "power": "maybe"}, ARGUMENTS, "must be one of"),
    ("text for a number", {"vm": "ml-07", "profile": "a40-8q", "count": "many"}, ARGUMENTS, "cannot be converted"),
    ("an unknown option", {"vm": "ml-07", "profil": "a40-8q"}, ARGUMENTS, "Unsupported parameters"),
)
OUT_OF_REACH: Final = "on a host out of reach"
"""From this task on."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SimServer]:
    with start(mixed_lab(tmp_path), clock="stepped") as server:
        sim_client.write(tmp_path / "ready.json", sim_client.of(server))
        yield server
        assert list(server.world.bugs) == []


def play(ansible: Ansible, folder: Path, tasks: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """What each task returned, whatever became of the one before."""
    book, output_file = folder / "book.yml", folder / "told.json"
    names = [f"task_{number}" for number in range(len(tasks))]
    copy_options = {"content": "{{ [" + ", ".join(names) + "] | to_json }}", "dest": str(output_file), "mode": "0600"}
    defaults = {"hostname": f"sim@{folder}/ready.json", "state_dir": f"{folder}/state"}
    book.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "localhost",
                    "gather_facts": False,
                    "module_defaults": {"group/gpuops.vsphere.gpuops": defaults},
                    "tasks": [
                        *(
                            {**task, "register": name, "ignore_errors": True}
                            for task, name in zip(tasks, names, strict=True)
                        ),
                        {"name": "Tell", "ansible.builtin.copy": copy_options, "check_mode": False},
                    ],
                }
            ]
        ),
        encoding="utf-8",
    )
    ansible("playbook", book, *options)
    answers: list[dict[str, Any]] = json.loads(output_file.read_text(encoding="utf-8"))
    return answers


def became(result: dict[str, Any]) -> str | int:
    if result.get("failed"):
        return int(result["exit_code"]) if "exit_code" in result else ARGUMENTS
    return CHANGED if result["changed"] else UNCHANGED


def words_of_result(result: dict[str, Any]) -> str:
    return str(result.get("msg") or "; ".join(result["because"]))


def test_none_crashes(ansible: Ansible, tmp_path: Path, lab: SimServer) -> None:
    names = [name for name, *_ in TASKS]
    cut = names.index(OUT_OF_REACH)
    tasks = [{"name": name, "gpuops.vsphere.vm_gpu": options} for name, options, *_ in TASKS]
    results = play(ansible, tmp_path, tasks[:cut])
    with lab.world.lock:
        (host,) = (machine for machine in lab.world.by_type("HostSystem") if machine.name == "esx-01.lab")
        host.state.connection = "notResponding"
        host.runtime_changed()
    reading = [
        {"name": "Hosts", "gpuops.vsphere.host_gpu_info": {}},
        {"name": "VMs", "gpuops.vsphere.vm_gpu_info": {}},
        {"name": "Room", "gpuops.vsphere.gpu_capacity_info": {}},
    ]
    *late, hosts, vms, room = play(ansible, tmp_path, [*tasks[cut:], *reading])
    results += late
    assert {name: became(result) for name, result in zip(names, results, strict=True)} == {
        name: expected_words for name, _, expected_words, _ in TASKS
    }
    wrong = {
        name: words_of_result(result)
        for (name, _, _, words), result in zip(TASKS, results, strict=True)
        if words not in words_of_result(result)
    }
    assert wrong == {}
    devices: dict[str, Any] = {
        name: (result.get("vm") or {}).get("devices") for name, result in zip(names, results, strict=True)
    }
    assert devices["two equal profiles"] == ["vGPU grid_a100d-40c"] * 2
    assert devices["one of two equal profiles"] == ["vGPU grid_a100d-40c"]
    assert sorted(devices["a vGPU beside a whole GPU and a network card"]) == sorted(
        [NIC, "DirectPath 0000:5e:00.0", "vGPU nvidia_a40-24c"]
    )
    assert devices["the last GPU beside the network card"] == [NIC]
    assert {host["name"]: host["connected"] for host in hosts["hosts"]} == {"esx-01.lab": False, "esx-02.lab": True}
    assert {"ml-01", "vdi-01"} <= {vm["name"] for vm in vms["vms"]}
    assert room["failed"] is False
    (vm,) = (machine for machine in lab.world.by_type("VirtualMachine") if machine.name == "mixed")
    assert [device.key for device in vm.state.devices] == [13031], "the network card is as it was"
