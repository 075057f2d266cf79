"""`doctor`: each thing that stands in the way is found, and nothing is found where nothing does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.errors import HostNotFound
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GpuHealth, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Cluster, Host, OfferedProfile
from gpuops.model.vcenter.host_settings import Custody, HostSettings, SmiState, SoftwarePackage
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import Examination, examine, of_parser
from gpuops.plan.doctor.host_findings import Severity

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
    devices=(VgpuDevice(13000, PROFILE),),
    extra_config={},
    memory_locked=True,
)


def gpu(**facts: Any) -> PhysicalGpu:
    gpu_facts = {"graphics_type": DIRECT, "configured_graphics_type": DIRECT, "vgpu_mode": VgpuMode.SAME_SIZE, **facts}
    return PhysicalGpu(PciAddress.parse("0000:3b:00.0"), "NVIDIA A40", NVIDIA_VENDOR_ID, 0x2235, **gpu_facts)


def host(ref: str = "h-1", settings: HostSettings | None = WELL, **facts: Any) -> Host:
    offered = (OfferedProfile(PROFILE, migrate=True),)
    host_facts = {
        "connected": True,
        "cluster": "c-1",
        "gpus": (gpu(),),
        "profiles": offered,
        "settings": settings,
        **facts,
    }
    return Host(ref, f"esx-{ref[-1]}", **host_facts)


def examine_host(*hosts: Host, vm: Vm | None = None, missing: str = "", **facts: Any) -> Examination:
    facts_of_vcenter = {"hot_migrate_enabled": True, **facts}
    snapshot = Inventory(
        "vc",
        "8.0.3.0",
        datetime(2026, 11, 2, tzinfo=UTC),
        hosts={esx.ref: esx for esx in hosts or (host(),)},
        vms={vm.ref: vm} if vm else {},
        clusters={"c-1": facts_of_vcenter.pop("cluster", Cluster("c-1", "desktops", rules=()))},
        **facts_of_vcenter,
    )
    return examine(snapshot, load(boards=("a40",)), Scope(), {"h-1": {missing}} if missing else {})


def test_where_nothing_stands_in_the_way_nothing_is_found() -> None:
    examination = examine_host(vm=VM)
    assert (examination.findings, examination.healthy) == ((), True)


NO_MODULE = HostSettings(has_module=False, custody=WELL.custody)


def test_privileges_that_this_login_lacks_on_a_host_are_a_note() -> None:
    examination = examine_host(missing="Host.Config.Settings")
    assert [(finding.severity, finding.subject) for finding in examination.findings] == [("note", "esx-1")]
    assert "lacks Host.Config.Settings" in examination.findings[0].reason
    assert examination.healthy


def test_the_worst_comes_first() -> None:
    examination = examine_host(host(in_maintenance=True, settings=NO_MODULE), hot_migrate_enabled=False)
    assert [finding.severity for finding in examination.findings] == ["error", "warning", "note"]


def test_a_name_that_is_not_there_is_said() -> None:
    snapshot = examine_host().inventory
    with pytest.raises(HostNotFound):
        examine(snapshot, load(), Scope(host="esx-9"), {})


def test_a_running_vm_that_cannot_be_moved_is_named_where_others_can() -> None:
    pinned = replace(VM, power=PowerState.ON, extra_config={"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"})
    [finding] = examine_host(vm=pinned).findings
    assert finding.reason == "cannot be moved while it runs: is pinned to GPU 0000:3b:00.0"
    [switched_off] = examine_host(vm=pinned, hot_migrate_enabled=False).findings
    assert switched_off.subject == "vgpu.hotmigrate.enabled"


def smi(
    ecc: bool = True, ecc_pending: bool = True, mig: tuple[bool | None, bool | None] = (None, None)
) -> HostSettings:
    return replace(WELL, mig=(SmiState(PciAddress.parse("0000:3b:00.0"), *mig, ecc, ecc_pending),))


def test_health_of_the_snapshot_counts_where_the_settings_have_none() -> None:
    """As by the entry of a target: no host shell was asked for the settings."""
    well = host()
    gpus = (replace(well.gpus[0], health=GpuHealth(requires_reset=True)), *well.gpus[1:])
    [finding] = examine_host(replace(well, gpus=gpus)).findings
    assert (finding.severity, finding.reason) == (Severity.ERROR, "needs a reset: no vGPU starts on it before that")


def test_ecc_that_differs_in_a_cluster_keeps_vgpus_from_moving() -> None:
    [finding] = examine_host(host(settings=smi()), host("h-2", settings=smi(False, False))).findings
    assert (finding.subject, finding.reason) == (
        "desktops",
        "ECC of NVIDIA A40 is off only on esx-2: vGPUs cannot move to other hosts",
    )
    assert examine_host(host(settings=smi()), host("h-2", settings=smi())).findings == ()


def test_privileges_that_nobody_needs_are_named_once() -> None:
    snapshot = examine_host(host(), host("h-2")).inventory
    granted = {"h-1": {"Datastore.DeleteFile"}, "h-2": {"Datastore.DeleteFile"}}
    [finding] = examine(snapshot, load(boards=("a40",)), Scope(), {}, granted).findings
    assert finding.reason == "this login also has Datastore.DeleteFile: no command needs that"


def fix(settings: HostSettings = WELL, **facts: Any) -> str:
    """The fix of the one finding on a host."""
    [finding] = examine_host(host(settings=settings, gpus=(gpu(**facts),))).findings
    return finding.fix


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("0x01", "--scheduler equal-share"),
        ("0x00180013", "--scheduler fixed-share --time-slice 24ms"),
        ("0x03", "--scheduler equal-share --time-slice default"),
        ("0x211E0001", "--scheduler equal-share --frequency 480Hz --averaging 33"),
        ("0x00", "--scheduler best-effort"),
    ],
)
def test_a_scheduler_that_waits_is_set_as_it_is_and_its_host_rebooted(word: str, options: str) -> None:
    waiting = replace(WELL, module_options=f"NVreg_RegistryDwords=RmPVMRL={word}")
    command = fix(waiting)
    assert command == f"gpuops host scheduler set {options} --gpu 0000:3b:00.0 --host esx-1 --reboot rolling"


def test_an_old_one_is_a_note() -> None:
    [note] = of_parser((2, 5, 0))
    assert (note.severity, note.subject) == (Severity.NOTE, "libexpat 2.5.0")
    assert "before 2.7.2" in note.reason


def test_a_sound_one_is_none() -> None:
    assert list(of_parser((2, 7, 2))) == list(of_parser((3, 0, 0))) == []
