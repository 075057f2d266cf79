"""Releases: what `VirtualNuma` and Dynamic DirectPath I/O need is known by the host that a VM is made on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.steps import NewVgpu
from gpuops.plan.core.versions import hardware_on, release
from gpuops.plan.queue.one_workload import Placed, Refusal, recipe
from gpuops.plan.queue.place import Place
from tests.plan.snapshots import catalog, lab


@pytest.mark.parametrize(
    ("version", "hardware"),
    [
        ("9.0.0", 21),
        ("8.0.3", 21),
        ("8.0.1", 20),
        ("7.0.3", 19),
        ("7.0.1", 18),
        ("7.0.0", 17),
        ("6.7.0", 14),
        ("6.5.0", 13),
        ("6.0.0", 11),
        (None, 21),
    ],
)
def test_hardware_of_a_new_vm(version: str | None, hardware: int) -> None:
    assert hardware_on(version) == hardware


@pytest.mark.parametrize("text", [None, "", "eight", "8.0"])
def test_what_is_no_release_is_unknown(text: str | None) -> None:
    assert release(text) is None


def on_release(version: str) -> Inventory:
    hosts = {ref: replace(host, version=version) for ref, host in lab().hosts.items()}
    return replace(lab(), hosts=hosts)


def answer(version: str, **fields: object) -> Placed | Refusal:
    workload = Workload(name="a", vcpus=4, memory_mib=16 * 1024, **fields)  # type: ignore[arg-type]
    (answer_of_workload,) = Place((workload,)).placements(on_release(version), catalog()).answers
    return answer_of_workload


@pytest.mark.parametrize(("version", "cores", "node"), [("8.0.1", 4, 0), ("7.0.3", None, None)])
def test_virtual_nodes_are_set_only_where_the_release_has_them(
    version: str, cores: int | None, node: int | None
) -> None:
    placed = answer(version, profile="a100-3-20c")
    assert isinstance(placed, Placed)
    changes = recipe(placed, catalog())
    assert changes.cores_per_numa_node == cores
    assert [device.numa_node for device in changes.add if isinstance(device, NewVgpu)] == [node]


@pytest.mark.parametrize(
    ("version", "warning"),
    [
        (
            "8.0.3",
            "a is wider than a NUMA node: coresPerNumaNode 2 shows the guest 2 nodes",
        ),
        (
            "7.0.3",
            "a is wider than a NUMA node; coresPerNumaNode needs vmx-20, and it has vmx-19",
        ),
    ],
)
def test_what_is_said_of_a_wide_vm_is_what_is_done(version: str, warning: str) -> None:
    placed = answer(version, profile="a40-48q", count=2)
    assert isinstance(placed, Placed)
    assert (recipe(placed, catalog()).cores_per_numa_node is None) is (version == "7.0.3")
    assert [line for line in placed.warnings if line.startswith(warning)]


def test_whole_gpus_of_a_kind_are_refused_where_no_virtual_hardware_has_them() -> None:
    refusal = answer("6.7.0", gpus=1, model="l40s")
    assert isinstance(refusal, Refusal)
    assert "a: virtual hardware for Dynamic DirectPath I/O: needs vmx-17, vmx-14 there" in map(str, refusal.rejections)
    assert isinstance(answer("7.0.0", gpus=1, model="l40s"), Placed)
