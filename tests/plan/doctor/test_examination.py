"""`doctor`: each thing that stands in the way is found, and nothing is found where nothing does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.errors import HostNotFound
from gpuops.model.gpu import NVIDIA_VENDOR_ID, GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Cluster, Host, OfferedProfile
from gpuops.model.host_settings import Custody, HostSettings, SmiState, SoftwarePackage
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode
from gpuops.model.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import Examination, examine

PROFILE = "nvidia_a40-8q"
DIRECT, SHARED = GraphicsType.SHARED_DIRECT, GraphicsType.SHARED
DRIVER = SoftwarePackage("NVD-VGPU-800-Driver", "550.90.05-1OEM.800", "NVIDIA")
WELL = HostSettings("", "", True, (DRIVER,), custody=Custody((), False))
VM = Vm(
    "v",
    "desk",
    host="h-1",
    power=PowerState.OFF,
    connected=True,
    vcpus=4,
    memory_mib=8192,
    devices=(VgpuDevice(1, PROFILE),),
    extra_config={},
    memory_locked=True,
)


def gpu(**facts: Any) -> PhysicalGpu:
    told = {"graphics_type": DIRECT, "configured_graphics_type": DIRECT, "vgpu_mode": VgpuMode.SAME_SIZE, **facts}
    return PhysicalGpu(PciAddress.parse("0000:3b:00.0"), "NVIDIA A40", NVIDIA_VENDOR_ID, 0x2235, **told)


def host(ref: str = "h-1", settings: HostSettings | None = WELL, **facts: Any) -> Host:
    offered = (OfferedProfile(PROFILE, migrate=True),)
    told = {"connected": True, "cluster": "c-1", "gpus": (gpu(),), "profiles": offered, "settings": settings, **facts}
    return Host(ref, f"esx-{ref[-1]}", **told)


def examined(*hosts: Host, vm: Vm | None = None, missing: str = "", **facts: Any) -> Examination:
    told = {"hot_migrate_enabled": True, **facts}
    seen = Inventory(
        "vc",
        "8.0.3.0",
        datetime(2026, 11, 2, tzinfo=UTC),
        hosts={each.ref: each for each in hosts or (host(),)},
        vms={vm.ref: vm} if vm else {},
        clusters={"c-1": told.pop("cluster", Cluster("c-1", "desktops", rules=()))},
        **told,
    )
    return examine(seen, load(boards=("a40",)), Scope(), {"h-1": {missing}} if missing else {})


def test_where_nothing_stands_in_the_way_nothing_is_found() -> None:
    found = examined(vm=VM)
    assert (found.findings, found.healthy) == ((), True)


PENDING = Passthrough(capable=True, enabled=True, active=False)
NO_MODULE = HostSettings(has_module=False, custody=WELL.custody)


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (examined(host(connected=None)), "error", "esx-1: is not connected"),
        (examined(host(in_maintenance=True)), "note", "esx-1: is in maintenance mode"),
        (examined(host(unreadable=("config.graphicsInfo",))), "warning", "cannot read config.graphicsInfo"),
        (examined(host(settings=NO_MODULE)), "error", "has GPUs for vGPUs, and no NVIDIA driver"),
        (examined(host(settings=replace(WELL, packages=None))), "warning", "driver's version is not known"),
        (examined(host(settings=replace(WELL, unread=("no",)))), "warning", "cannot all be read: no"),
        (examined(host(settings=replace(WELL, loaded_options="x"))), "warning", "other module options"),
        (
            examined(
                host(settings=replace(WELL, module_options="NVreg_RegistryDwords=RmPVMRL=5", loaded_options=None))
            ),
            "warning",
            "its scheduler: 0x00000005",
        ),
        (examined(host(gpus=(gpu(passthrough=PENDING),))), "warning", "DirectPath I/O is on from the next reboot on"),
        (examined(host(gpus=(gpu(configured_graphics_type=SHARED),))), "warning", "is shared from the next reboot on"),
        (
            examined(host(gpus=(gpu(graphics_type=SHARED, configured_graphics_type=SHARED),))),
            "warning",
            "is shared: no vGPU starts on it",
        ),
        (examined(host(gpus=(gpu(graphics_type=None),))), "warning", "what it is used for cannot be read"),
        (
            examined(host(), host("h-2", replace(WELL, packages=(replace(DRIVER, version="535.1"),)))),
            "warning",
            "desktops: its hosts have different NVIDIA drivers: esx-1 550.90.05-1OEM.800, esx-2 535.1",
        ),
        (examined(hot_migrate_enabled=False), "warning", "a running VM with a vGPU cannot be moved"),
        (examined(hot_migrate_enabled=None), "note", "whether vGPU VMs can be moved is not known"),
        (
            examined(cluster=Cluster("c-1", "desktops", drs_enabled=True, drs_behavior="fullyAutomated")),
            "note",
            "desktops: DRS moves VMs by itself",
        ),
        (
            examined(host(settings=replace(WELL, custody=Custody(("gold",), False)))),
            "note",
            "host profile gold is attached",
        ),
        (
            examined(host(settings=replace(WELL, custody=Custody((), True)))),
            "note",
            "its cluster keeps its configuration",
        ),
        (examined(host(settings=replace(WELL, custody=Custody(None, False)))), "note", "sets it back cannot be read"),
        (examined(missing="Host.Config.Settings"), "note", "lacks Host.Config.Settings"),
        (examined(vm=replace(VM, memory_locked=False)), "error", "desk: not all its memory is reserved"),
        (examined(vm=replace(VM, memory_locked=None)), "warning", "its memory reservation cannot be read"),
        (examined(vm=replace(VM, question="?")), "warning", "desk: waits for an answer"),
        (examined(vm=replace(VM, devices=(VgpuDevice(1, "other"),))), "error", "esx-1 does not offer its other"),
        (
            examined(vm=replace(VM, devices=None, unreadable=("config.hardware.device",))),
            "warning",
            "desk: this login cannot read its devices",
        ),
    ],
)
def test_what_stands_in_the_way_is_found(found: Examination, severity: str, words: str) -> None:
    [finding] = found.findings
    assert finding.severity == severity
    assert words in f"{finding.subject}: {finding.reason}"
    assert finding.fix
    assert found.healthy is (severity == "note")


def test_the_worst_comes_first() -> None:
    found = examined(host(in_maintenance=True, settings=NO_MODULE), hot_migrate_enabled=False)
    assert [each.severity for each in found.findings] == ["error", "warning", "note"]


def test_a_running_vm_or_one_without_a_gpu_has_no_findings() -> None:
    assert examined(vm=replace(VM, memory_locked=False, power=PowerState.ON)).findings == ()
    assert examined(vm=replace(VM, memory_locked=False, devices=())).findings == ()
    assert examined(vm=replace(VM, memory_locked=False, memory_mib=4, memory_reservation_mib=4)).findings == ()


def test_a_name_that_is_not_there_is_said() -> None:
    seen = examined().inventory
    with pytest.raises(HostNotFound):
        examine(seen, load(), Scope(host="esx-9"), {})


NODES = (
    NumaNode(0, 32, 65536, (PciAddress.parse("0000:3b:00.0"),)),
    NumaNode(1, 32, 65536),
)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"memory_mib": 131072}, "is wider than a NUMA node of esx-1 (131072 MiB of memory, a node has 65536)"),
        ({"vcpus": 48}, "is wider than a NUMA node of esx-1 (48 vCPUs, a node has 32)"),
        (
            {"extra_config": {"numa.nodeAffinity": "1", "pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}},
            "is bound to NUMA node 1, and to GPU 0000:3b:00.0 beside node 0",
        ),
    ],
)
def test_a_vm_that_is_far_from_its_gpu(facts: dict[str, Any], said: str) -> None:
    there = host(numa_nodes=NODES, gpus=(gpu(numa_node=0),))
    [finding] = examined(there, vm=replace(VM, **facts)).findings
    assert (finding.subject, finding.reason[: len(said)]) == ("desk", said)
    assert examined(there, vm=VM).findings == ()


def test_a_running_vm_that_cannot_be_moved_is_named_where_others_can() -> None:
    pinned = replace(VM, power=PowerState.ON, extra_config={"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"})
    [finding] = examined(vm=pinned).findings
    assert finding.reason == "cannot be moved while it runs: is pinned to GPU 0000:3b:00.0"
    [switched_off] = examined(vm=pinned, hot_migrate_enabled=False).findings
    assert switched_off.subject == "vgpu.hotmigrate.enabled"


def test_a_gpu_of_which_nothing_is_offered_may_lack_sr_iov() -> None:
    [finding] = examined(host(profiles=())).findings
    assert finding.subject == "esx-1 0000:3b:00.0"
    assert "the host offers no vGPU profile of" in finding.reason
    assert "SR-IOV is off in the BIOS" in finding.reason


def smi(
    ecc: bool = True, ecc_pending: bool = True, mig: tuple[bool | None, bool | None] = (None, None)
) -> HostSettings:
    return replace(WELL, mig=(SmiState(PciAddress.parse("0000:3b:00.0"), *mig, ecc, ecc_pending),))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (smi(ecc_pending=False), "ECC is off from the next reset or reboot on"),
        (smi(mig=(False, True)), "MIG mode is on from the next reset or reboot on"),
    ],
)
def test_modes_that_wait_for_a_reset(settings: HostSettings, said: str) -> None:
    [finding] = examined(host(settings=settings)).findings
    assert (finding.subject, finding.reason) == ("esx-1 0000:3b:00.0", said)


def test_ecc_that_differs_in_a_cluster_keeps_vgpus_from_moving() -> None:
    [finding] = examined(host(settings=smi()), host("h-2", settings=smi(False, False))).findings
    assert (finding.subject, finding.reason) == (
        "desktops",
        "ECC of NVIDIA A40 is off on esx-2 alone: no vGPU moves between them",
    )
    assert examined(host(settings=smi()), host("h-2", settings=smi())).findings == ()


def test_privileges_that_nobody_needs_are_named_once() -> None:
    seen = examined(host(), host("h-2")).inventory
    held = {"h-1": {"Datastore.DeleteFile"}, "h-2": {"Datastore.DeleteFile"}}
    [finding] = examine(seen, load(boards=("a40",)), Scope(), {}, held).findings
    assert finding.reason == "this login also has Datastore.DeleteFile: no command needs that"


def fix(settings: HostSettings = WELL, **facts: Any) -> str:
    """The fix of the one finding on a host."""
    [finding] = examined(host(settings=settings, gpus=(gpu(**facts),))).findings
    return finding.fix


def test_what_waits_for_a_reboot_has_the_command_that_reboots_its_host() -> None:
    of_gpu = "--gpu 0000:3b:00.0 --host esx-1"
    assert fix(configured_graphics_type=SHARED) == f"gpuops mode set --type shared {of_gpu} --reboot rolling"
    assert fix(passthrough=PENDING) == "gpuops passthrough on --device 0000:3b:00.0 --host esx-1 --reboot rolling"
    assert fix(smi(mig=(False, True))) == f"gpuops mig set on {of_gpu} --host-shell ssh --reboot rolling"
    assert fix(smi(ecc_pending=False)) == "maintenance mode and a reboot, when its VMs are out of the way"


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("0x01", "--policy equal-share"),
        ("0x00180013", "--policy fixed-share --time-slice 24ms"),
        ("0x03", "--policy equal-share --time-slice default"),
        ("0x211E0001", "--policy equal-share --frequency 480Hz --averaging 33"),
        ("0x00", "--policy best-effort"),
    ],
)
def test_a_scheduler_that_waits_is_set_as_it_is_and_its_host_rebooted(word: str, options: str) -> None:
    waiting = replace(WELL, module_options=f"NVreg_RegistryDwords=RmPVMRL={word}")
    command = fix(waiting)
    assert command == f"gpuops scheduler set {options} --gpu 0000:3b:00.0 --host esx-1 --reboot rolling"
