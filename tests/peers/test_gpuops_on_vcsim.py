"""gpuops against a third-party vCenter: govmomi's vcsim, with GPUs added to its own saved inventory.

vcsim has no GPU admission, and its graphicsInfo never follows a VM's power state: what it can witness is the wire, the
device that lands on the VM and the power states. govc, from the same house, says what vcsim then holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import built
from .processes import Endpoint, Govc, running_vcsim

pytestmark = pytest.mark.peer

POLICY = """
version: 1
name: vcsim-night
windows: any
pools:
  - name: office
    parked: true
    select: {name: "vdi-0[1-4]"}
    idle: {cpu_below_mhz: 500}
    owner: none
    floor: 0
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
  stop: {grace_s: 60, then: power-off}
"""


class Gpuops:
    """The command line in a process of its own, as a user types it."""

    def __init__(self, endpoint: Endpoint, home: Path) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "GPUOPS_VCENTER": endpoint.url,
            "GPUOPS_USERNAME": endpoint.username,
            "GPUOPS_PASSWORD": endpoint.password,
            "GPUOPS_CA_FILE": str(endpoint.ca_file),
            "GPUOPS_STATE_DIR": str(home / "state"),
        }

    def __call__(self, *arguments: str, exit_code: int = 0) -> str:
        """What it prints on stdout; fails the test when it ends with another exit code."""
        completed = subprocess.run(
            [sys.executable, "-m", "gpuops", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert completed.returncode == exit_code, (
            f"{arguments}: {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
        )
        assert "Traceback" not in completed.stderr
        return completed.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output", "json"))


@pytest.fixture
def gpuops(vcsim: Endpoint, tmp_path: Path) -> Gpuops:
    return Gpuops(vcsim, tmp_path)


@pytest.fixture
def peer(vcsim: Endpoint, govc: Callable[[Endpoint], Govc]) -> Govc:
    return govc(vcsim)


def _vgpus(peer: Govc, vm: str) -> list[str]:
    backings = [device.get("backing") or {} for device in peer.json("device.info", "-vm", vm)["devices"]]
    return [backing["vgpu"] for backing in backings if "vgpu" in backing]


def _power(peer: Govc, vm: str) -> str:
    state: str = peer.json("vm.info", vm)["virtualMachines"][0]["runtime"]["powerState"]
    return state


def test_vcsim_as_it_comes_speaks_6_5_and_is_read_but_not_changed(tmp_path: Path) -> None:
    built()
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    with running_vcsim(tmp_path) as endpoint:
        gpuops = Gpuops(endpoint, tmp_path)
        for verb in ("inventory", "capacity", "doctor", "host mode show", "host scheduler show", "host mig show"):
            gpuops(*verb.split())
        assert gpuops.json("inventory")["api_version"] == "6.5"
        gpuops("rotate", "init", "--policy", str(policy), exit_code=3)


def test_the_inventory_shows_gpus_numa_nodes_and_holders(gpuops: Gpuops) -> None:
    text = gpuops("inventory")
    assert "gpu-esx-01" in text
    assert "A100 PCIe 40GB" in text
    assert "NUMA node 1" in text
    assert "ml-03" in text


def test_vcsim_does_not_speak_vi_json_and_is_read_over_soap(gpuops: Gpuops) -> None:
    tested = gpuops.json("login", "test")
    assert (tested["reader"], tested["vi_json"]["offered"], tested["vi_json"]["equal"]) == ("soap", True, False)
    assert tested["vi_json"]["failure"]
    gpuops("inventory")
    gpuops("inventory", "--reader", "json", exit_code=5)


def test_attach_twice_and_detach_leave_the_vm_as_it_was(gpuops: Gpuops, peer: Govc) -> None:
    before = peer.json("vm.info", "-e", "ml-07")["virtualMachines"][0]["config"]

    assert "grid_a100-3-20c" in gpuops("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--dry-run")
    assert _vgpus(peer, "ml-07") == []
    gpuops("attach", "--vm", "ml-07", "--profile", "a100-3-20c")
    assert _vgpus(peer, "ml-07") == ["grid_a100-3-20c"]
    changed = peer.json("vm.info", "-e", "ml-07")["virtualMachines"][0]["config"]
    assert changed["memoryReservationLockedToMax"] is True

    assert gpuops.json("attach", "--vm", "ml-07", "--profile", "a100-3-20c")["changed"] is False
    gpuops("detach", "--vm", "ml-07", "--profile", "a100-3-20c")
    assert _vgpus(peer, "ml-07") == []
    after = peer.json("vm.info", "-e", "ml-07")["virtualMachines"][0]["config"]
    for key in ("extraConfig", "memoryReservationLockedToMax", "cpuHotAddEnabled", "memoryAllocation"):
        assert after.get(key) == before.get(key), key
    gpuops("detach", "--vm", "ml-07", "--profile", "a100-3-20c")


def test_bad_names_change_nothing(gpuops: Gpuops, peer: Govc) -> None:
    gpuops("attach", "--vm", "ml-77", "--profile", "a100-3-20c", exit_code=2)
    gpuops("attach", "--vm", "ml-07", "--profile", "a100-9-99c", exit_code=2)
    assert _vgpus(peer, "ml-07") == []


def test_a_night_and_a_morning(gpuops: Gpuops, peer: Govc, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    desktops = [f"vdi-{number:02}" for number in range(1, 5)]

    gpuops("rotate", "night", "--policy", str(policy), "--yes")
    assert {_power(peer, vm) for vm in desktops} == {"suspended"}
    assert {_power(peer, vm) for vm in ("ml-01", "ml-02")} == {"poweredOn"}
    gpuops("rotate", "status")
    gpuops("rotate", "day", "--policy", str(policy), "--yes")
    assert {_power(peer, vm) for vm in desktops} == {"poweredOn"}
    assert {_power(peer, vm) for vm in ("ml-01", "ml-02")} == {"poweredOff"}
    marks = peer.json("object.collect", "-s", f"vm/{desktops[0]}", "customValue")
    assert "desktop" not in json.dumps(marks)
