"""The planner's picture of what its steps do is what the other end of the wire then shows, request after request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import run
from gpuops.clock import wall_clock
from gpuops.execute.site import Site, catalog_of
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

REQUIRED: Final = NumaPolicy.REQUIRED
ON, OFF, CYCLE, COLD = PowerPolicy.ON, PowerPolicy.OFF, PowerPolicy.CYCLE, MoveMode.COLD
VGPU: Final = "a100-3-20c"

HOST_WRITTEN: Final = ("numa.autosize.cookie", "numa.autosize.vcpu.maxPerVirtualNode")
"""extraConfig that a host writes at power-on."""

NOT_FORESEEN: Final = frozenset(
    {
        "origin",  # what was read, of a snapshot that was changed
        "taken_at",
        "started_at",  # the moment at which its host starts it
        "change_version",
        "tools_running",  # the guest's own
        "cpu_usage_mhz",
        "memory_used_mib",
        "config_target",
        "profiles",  # their order follows from what runs
        "bindings",  # not every host tells them; running VMs do
    }
)


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Return where two snapshots differ, except in fields that cannot be predicted."""
    if is_dataclass(expected) and type(expected) is type(actual):
        names = [field.name for field in fields(expected) if field.name not in NOT_FORESEEN]
        return [d for n in names for d in differences(getattr(expected, n), getattr(actual, n), f"{path}.{n}")]
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        keys = sorted((set(expected) | set(actual)) - set(HOST_WRITTEN))
        return [d for key in keys for d in differences(expected.get(key), actual.get(key), f"{path}[{key}]")]
    if isinstance(expected, tuple) and isinstance(actual, tuple) and len(expected) == len(actual):
        pairs = zip(expected, actual, strict=True)
        return [d for number, pair in enumerate(pairs) for d in differences(*pair, f"{path}[{number}]")]
    return [] if expected == actual else [f"{path}: foresaw {expected!r}, found {actual!r}"]


def project_steps(before: Inventory, steps: Sequence[Any]) -> Inventory:
    catalog = catalog_of(before)
    for step in steps:
        before = project(step, before, catalog)
    return before


SCRIPTS: Final[dict[str, list[Attach | Detach]]] = {
    "a vGPU comes, runs, changes and goes": [
        Attach("ml-07", profile=VGPU),
        Attach("ml-07", profile=VGPU, power=ON),
        Attach("ml-07", profile="a100-2-10c", replace=VGPU, count=2, power=CYCLE),
        Detach("ml-07", profile="a100-2-10c", count=1, power=CYCLE),
        Detach("ml-07", all=True, power=OFF),
    ],
    "bound to a NUMA node, and free again": [
        Attach("ml-07", profile=VGPU, numa=REQUIRED, power=ON),
        Attach("ml-07", profile="a100-1-5c", add=True, numa=REQUIRED, power=CYCLE),
        Detach("ml-07", profile=VGPU, power=OFF),
        Detach("ml-07", all=True),
    ],
    "wider than a NUMA node, and then not": [
        Attach("ml-07", profile=VGPU, count=4, power=ON),
        Attach("ml-07", profile=VGPU, count=2, power=CYCLE),
        Detach("ml-07", all=True, power=OFF),
    ],
    "moved to where the GPU is, and back": [
        Attach("ml-07", profile="a100d-80c", count=2, move=COLD, power=ON),
        Attach("ml-07", profile=VGPU, replace="a100d-80c", count=1, move=COLD, power=CYCLE),
    ],
    "whole GPUs": [
        Attach("ml-08", device=("0000:5e:00.0",)),
        Attach("ml-08", device=("0000:5e:00.0",), power=ON),
        Attach("ml-04", label="l40s-ml", power=ON),
        Detach("ml-04", label="l40s-ml", power=OFF),
        Detach("ml-08", all=True, power=OFF),
    ],
    "a device group": [
        Detach("ml-05", all=True),
        Attach("ml-05", device_group="Nvidia:2@grid_a100d-80c%NVLink", power=ON),
        Detach("ml-05", device_group="Nvidia:2@grid_a100d-80c%NVLink", power=OFF),
    ],
    "every mode of a GPU": [
        Attach("ml-07", profile="a40-8q", power=ON),
        Attach("ml-08", profile="a40-8q", power=ON),
        Attach("ml-05", profile="a40-16c", replace="a100d-80c", count=1),
    ],
}


@pytest.mark.parametrize(
    "script",
    mostly_long(SCRIPTS, ["a vGPU comes, runs, changes and goes", "moved to where the GPU is, and back", "whole GPUs"]),
)
def test_what_is_foreseen_happens_and_once(lab: SimServer, tmp_path: Path, script: str) -> None:
    with Connection(target_of(lab)) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock)
        for request in SCRIPTS[script]:
            report = run(request, site, apply=True)
            assert report.plan.rejections == () and report.plan.steps, (request, report.plan)
            assert report.exit_code == 0, report.outcomes
            expected = project_steps(report.before, report.plan.steps)
            assert differences(expected, site.vcenter.inventory()) == [], request
            second_run = run(request, site, apply=True)
            assert (second_run.plan.rejections, second_run.plan.steps) == ((), ()), request


def test_a_guest_sees_its_gpus_where_they_are(lab: SimServer, tmp_path: Path) -> None:
    """The virtual NUMA nodes of ml-07 have no configured size: vCenter shows the size that ESXi chose."""
    with Connection(target_of(lab)) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock)
        assert run(Attach("ml-07", profile=VGPU, count=4), site, apply=True).exit_code == 0
        [change] = [change for change in lab.world.ledger if change.name == "ml-07"]
        assert (change.before["cores_per_numa_node"], change.after["cores_per_numa_node"]) == (None, 4)
        vm = site.vcenter.inventory().find_vm("ml-07")
        assert (vm.vcpus, vm.cores_per_numa_node) == (8, 4)
        assert run(Detach("ml-07", all=True), site, apply=True).exit_code == 0
        assert site.vcenter.inventory().find_vm("ml-07").cores_per_numa_node == 0


def test_detach_leaves_the_vm_as_it_was(lab: SimServer, tmp_path: Path) -> None:
    with Connection(target_of(lab)) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock)
        before = site.vcenter.inventory().find_vm("ml-07")
        run(Attach("ml-07", profile=VGPU, count=2), site, apply=True)
        run(Attach("ml-07", profile="a100-1-5c", add=True), site, apply=True)
        run(Detach("ml-07", all=True), site, apply=True)
        assert differences(before, site.vcenter.inventory().find_vm("ml-07")) == []
