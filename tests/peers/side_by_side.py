"""Side by side: what modules of community.vmware and those of gpuops do with the same wishes, and how long it takes.

    make -C tests/peers ansible                  the peer, once
    .venv/bin/python -m tests.peers.side_by_side the table, as Markdown

Each side has a simulated vCenter of its own, with the same inventory, on the clock that it has by default; where
seconds are printed, tasks take real time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.simulator.simulators import our_simulator
from tests.peers.plays import GPUOPS, PEER, ROOT, Side, Task
from tests.peers.processes import Endpoint

SCENARIO: Final = ROOT / "tests" / "peers" / "scenarios" / "side_by_side.yaml"
DATACENTER: Final = "dc"
MANY: Final = 20
PROFILE: Final = "nvidia_a40-8q"
WHOLE: Final = "nvidia_a40-48c"
WIDTH: Final = 90
"""Of a message in the table."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One row: what is wanted of each side, in their words, and what should come of it. None = there is no module."""

    what: str
    should: str
    peer: Task | None
    ours: Task | None


def _vgpu(vm: str, **arguments: Any) -> Task:
    return {"community.vmware.vmware_guest_vgpu": {"name": vm, "datacenter": DATACENTER, "vgpu": PROFILE, **arguments}}


def _power(vm: str, state: str) -> Task:
    return {"community.vmware.vmware_guest_powerstate": {"name": vm, "state": state}}


def _graphics(**arguments: Any) -> Task:
    settings = {"graphic_type": "sharedDirect", "assigment_policy": "consolidation"}  # as that module spells it
    return {"community.vmware.vmware_host_graphics": {"esxi_hostname": "esx-01.peer", **settings}, **arguments}


def _mode(**arguments: Any) -> Task:
    return {"gpuops.vsphere.host_graphics_mode": {"host": "esx-01.peer", "assignment": "consolidation"}, **arguments}


def _gpu(vm: str, **arguments: Any) -> Task:
    return {"gpuops.vsphere.vm_gpu": {"vm": vm, **arguments}}


def _remove_gpu(vm: str) -> Task:
    return _gpu(vm, profile=PROFILE, state="absent")


WISHES: Final = (
    Wish("vGPU for a VM that has none", "changed", _vgpu("vm-001"), _gpu("vm-001", profile=PROFILE)),
    Wish("the same again", "unchanged", _vgpu("vm-001"), _gpu("vm-001", profile=PROFILE)),
    Wish(
        "check mode, another VM",
        "changed",
        {**_vgpu("vm-002"), "check_mode": True},
        {**_gpu("vm-002", profile=PROFILE), "check_mode": True},
    ),
    Wish(
        "two of one profile in a VM",
        "changed",
        _vgpu("vm-001", force=True),
        _gpu("vm-001", profile=PROFILE, count=2),
    ),
    Wish("the same again", "unchanged", _vgpu("vm-001", force=True), _gpu("vm-001", profile=PROFILE, count=2)),
    Wish("taken away", "changed", _vgpu("vm-001", state="absent"), _remove_gpu("vm-001")),
    Wish("taken away where there is none", "unchanged", _vgpu("vm-004", state="absent"), _remove_gpu("vm-004")),
    Wish(
        "vGPU for a running VM, restarted for it",
        "changed",
        _vgpu("running"),
        _gpu("running", profile=PROFILE, power="cycle"),
    ),
    Wish("48 GB vGPU for a VM", "changed", _vgpu("vm-005", vgpu=WHOLE), _gpu("vm-005", profile=WHOLE)),
    Wish("and its start", "changed", _power("vm-005", "powered-on"), _gpu("vm-005", profile=WHOLE, power="on")),
    Wish("a profile that no GPU has", "refused", _vgpu("vm-006", vgpu="nvidia_x9-1q"), _gpu("vm-006", profile="x9-1q")),
    Wish("a name that two VMs carry", "refused", _vgpu("twin"), _gpu("twin", profile=PROFILE)),
    Wish("whole GPU by DirectPath I/O", "changed", None, _gpu("vm-007", device=["0000:d8:00.0"])),
    Wish("host graphics, check mode", "changed", _graphics(check_mode=True), _mode(check_mode=True)),
    Wish("host graphics", "changed", _graphics(), _mode()),
    Wish("the same again", "unchanged", _graphics(), _mode()),
    Wish("a suspended VM runs again", "changed", _power("suspended", "powered-on"), None),
    Wish(
        "GPUs of a VM, read",
        "told",
        {"community.vmware.vmware_vm_info": {"vm_name": "vm-005"}},
        {"gpuops.vsphere.vm_gpu_info": {"vm": "vm-005"}},
    ),
)
"""Played in this order, each on what the ones before it have left."""


def judge_result(wish: Wish, result: Mapping[str, Any] | None) -> str:
    """What became of it, in a word; `crashes` = the module ended in an error of its own that it did not foresee."""
    if result is None:
        return "no module"
    if result.get("failed"):
        line = " ".join(str(result["msg"]).split())
        crashed = line.startswith("Task failed: Module failed: ")
        return f"{'crashes' if crashed else 'refused'}: {line.removeprefix('Task failed: Module failed: ')}"
    if result.get("skipped"):
        return "skipped"
    if wish.should == "told":
        return "told" if WHOLE in str(result) else "not told"
    return "changed" if result["changed"] else "unchanged"


def compare_sides() -> Iterator[tuple[Wish, str, str]]:
    """Yield each wish with its outcome on the peer's side and on ours, both at the same time, so without seconds."""
    with ThreadPoolExecutor(2) as sides:
        results_of_sides = sides.map(
            _results, (PEER, GPUOPS), ([wish.peer for wish in WISHES], [wish.ours for wish in WISHES])
        )
    for wish, peer, ours in zip(WISHES, *results_of_sides, strict=True):
        yield wish, judge_result(wish, peer), judge_result(wish, ours)


def _results(side: Side, tasks: Sequence[Task | None]) -> list[Mapping[str, Any] | None]:
    """What became of each task, in the order of the tasks; None where there is no module for it."""
    with serve_vcenter() as (endpoint, folder):
        results = iter(side.play(endpoint, folder, [task for task in tasks if task is not None]).results)
        return [None if task is None else next(results) for task in tasks]


LOOPS: Final = (
    (PEER, "a loop of vmware_guest_vgpu", lambda names: {**_vgpu("{{ item }}"), "loop": names}),
    (GPUOPS, "a loop of vm_gpu", lambda names: {**_gpu("{{ item }}", profile=PROFILE), "loop": names}),
    (
        GPUOPS,
        "one task of vm_gpus",
        lambda names: {"gpuops.vsphere.vm_gpus": {"vms": [{"vm": name, "profile": PROFILE} for name in names]}},
    ),
)
"""Who, how, and the task that gives each of these VMs a vGPU."""


def time_task(side: Side, task: Task) -> float:
    """Seconds that the play took, in which the task changed something and refused nothing."""
    with serve_vcenter("--clock=real") as (endpoint, folder):
        played = side.play(endpoint, folder, [task])
    (result,) = played.results
    if result.get("failed") or not result["changed"]:
        raise RuntimeError(f"{side.name}: {result.get('msg')}")
    return played.wall_s


def names(count: int) -> list[str]:
    """So many VMs that are off and have no GPU, on as many hosts as there are."""
    return [f"vm-{number:03}" for number in range(1, count + 1)]


@contextmanager
def serve_vcenter(*flags: str) -> Iterator[tuple[Endpoint, Path]]:
    """A simulated vCenter, and a folder for the play."""
    with tempfile.TemporaryDirectory() as folder, our_simulator(str(SCENARIO), *flags) as running:
        yield running.endpoint, Path(folder)


def main() -> None:
    """Print both tables as Markdown."""
    if not PEER.binaries.exists():
        sys.exit("community.vmware is not there: make -C tests/peers ansible")
    print(f"| What is wanted | should be | {PEER.name} | {GPUOPS.name} |\n|---|---|---|---|")
    for wish, *outcomes in compare_sides():
        peer, ours = (outcome if len(outcome) <= WIDTH else f"{outcome[:WIDTH].rstrip()} …" for outcome in outcomes)
        print(f"| {wish.what} | {wish.should} | {peer} | {ours} |", flush=True)
    print(f"\n| {MANY} VMs get a vGPU each | seconds | seconds per VM |\n|---|---|---|")
    for side, how, task in LOOPS:
        wall_s = time_task(side, task(names(MANY)))
        print(f"| {side.name}: {how} | {wall_s:.1f} | {wall_s / MANY:.2f} |", flush=True)


if __name__ == "__main__":
    main()
