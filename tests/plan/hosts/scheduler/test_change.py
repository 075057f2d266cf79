"""`scheduler set`: which hosts and GPUs a policy is refused on, by which rule, and what is written otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.errors import HostNotFound, UsageError
from gpuops.model.gpu import NVIDIA_VENDOR_ID, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Cluster, Host
from gpuops.model.host_settings import Custody, HostSettings, SoftwarePackage
from gpuops.model.inventory import Inventory
from gpuops.model.scheduler import SchedulerPolicy
from gpuops.model.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.steps import ConfigureModule
from gpuops.plan.hosts.host_plan import HostPlan
from gpuops.plan.hosts.scheduler.change import FREED_FRAMES, LIMITED_FRAMES, SetScheduler

EQUAL, FIXED, BEST = SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE, SchedulerPolicy.BEST_EFFORT
CATALOG = load(boards=("a40", "a100", "m10"))
DRIVER = SoftwarePackage("NVD-VGPU-800-Driver", "550.90.05-1OEM.800.1.0.20613240", "NVIDIA")
OLD = SoftwarePackage("NVIDIA-VMware_ESXi_7.0_Host_Driver", "470.63-1OEM.702.0.0.17630552", "NVIDIA")
ADDRESS = PciAddress.parse("0000:3b:00.0")
A40, M10, A100 = 0x2235, 0x13BD, 0x20F1


def gpu(at: str = "0000:3b:00.0", device: int = A40, mode: VgpuMode | None = VgpuMode.SAME_SIZE) -> PhysicalGpu:
    return PhysicalGpu(PciAddress.parse(at), "a GPU", NVIDIA_VENDOR_ID, device, vgpu_mode=mode)


def settings(options: str | None = "", packages: tuple[SoftwarePackage, ...] = (DRIVER,)) -> HostSettings:
    return HostSettings(options, options, True, packages, custody=Custody((), False))


def inventory(*gpus: PhysicalGpu, vms: tuple[Vm, ...] = (), told: HostSettings | None = None, **host: Any) -> Inventory:
    facts = {"connected": True, "cluster": "c-1", **host}
    one = Host("h-1", "esx-1.lab", gpus=gpus or (gpu(),), settings=told or settings(), **facts)
    return Inventory(
        "vc",
        "8.0.3.0",
        datetime(2026, 11, 2, tzinfo=UTC),
        hosts={"h-1": one},
        vms={vm.ref: vm for vm in vms},
        clusters={"c-1": Cluster("c-1", "desktops")},
    )


def planned(policy: SchedulerPolicy, seen: Inventory, **options: Any) -> HostPlan:
    return SetScheduler(policy, **{"host": "*", **options}).plan(seen, CATALOG)


def rules(plan: HostPlan) -> list[str]:
    assert not plan.steps
    return [str(rejection) for rejection in plan.rejections]


@pytest.mark.parametrize(
    ("policy", "options", "packages", "after"),
    [
        (EQUAL, {}, (DRIVER,), "NVreg_RegistryDwords=RmPVMRL=0x01"),
        (FIXED, {}, (), "NVreg_RegistryDwords=RmPVMRL=0x11"),
        (EQUAL, {"time_slice": "3ms"}, (DRIVER,), "NVreg_RegistryDwords=RmPVMRL=0x00030003"),
        (EQUAL, {"time_slice": "3ms"}, (OLD,), "NVreg_RegistryDwords=RmPVMRL=0x00030001"),
        (EQUAL, {"time_slice": "default"}, (DRIVER,), "NVreg_RegistryDwords=RmPVMRL=0x03"),
        (FIXED, {"frequency": "960 hz"}, (DRIVER,), "NVreg_RegistryDwords=RmPVMRL=0x003c0011"),
        (
            EQUAL,
            {"frequency": "480", "averaging": 33, "driver_branch": "r550"},
            (),
            "NVreg_RegistryDwords=RmPVMRL=0x211e0001",
        ),
        (
            EQUAL,
            {"gpu": ("3B:00.0",), "host": None, "cluster": "desktops"},
            (DRIVER,),
            "NVreg_RegistryDwordsPerDevice=pci=0000:3b:00.0;RmPVMRL=0x01",
        ),
    ],
)
def test_the_word_is_that_of_the_hosts_branch(
    policy: SchedulerPolicy, options: dict[str, Any], packages: tuple[SoftwarePackage, ...], after: str
) -> None:
    plan = planned(policy, inventory(told=settings("", packages)), **options)
    assert plan.feasible
    [step] = plan.steps
    assert isinstance(step, ConfigureModule)
    assert (step.before, step.after) == ("", after)
    assert plan.because == (FREED_FRAMES,)
    assert "reboot of esx-1.lab" in plan.afterwards[0]


def test_what_is_set_already_is_nothing_to_do_and_a_pending_reboot_is_said() -> None:
    told = replace(settings("x=1 NVreg_RegistryDwords=RmPVMRL=17"), loaded_options="x=1")
    plan = planned(FIXED, inventory(told=told))
    due = ConfigureModule("h-1", told.module_options or "", told.module_options or "")
    assert plan == HostPlan(because=("esx-1.lab is set to fixed-share already; a reboot is pending",), due=(due,))


def test_best_effort_brings_the_frame_rate_limiter_back() -> None:
    plan = planned(BEST, inventory(told=settings("NVreg_RegistryDwords=RmPVMRL=0x01")))
    [step] = plan.steps
    assert isinstance(step, ConfigureModule)
    assert step.after == "NVreg_RegistryDwords=RmPVMRL=0x00"
    assert plan.because == (LIMITED_FRAMES,)
    assert planned(BEST, inventory()).because == ("esx-1.lab is set to best-effort already",)


def test_a_change_between_shares_says_nothing_of_frames() -> None:
    assert planned(FIXED, inventory(told=settings("NVreg_RegistryDwords=RmPVMRL=0x01"))).because == ()


PASSED = replace(gpu(), passthrough=Passthrough(capable=True, enabled=True, active=False))


@pytest.mark.parametrize(
    ("policy", "seen", "options", "rule"),
    [
        (EQUAL, inventory(gpu(device=M10)), {}, "Maxwell GPUs have best effort only"),
        (BEST, inventory(gpu(device=M10)), {}, "Maxwell GPUs have best effort only"),
        (EQUAL, inventory(gpu(mode=VgpuMode.MULTI_INSTANCE)), {}, "MIG-backed vGPUs are not scheduled"),
        (FIXED, inventory(gpu(mode=VgpuMode.MIXED_SIZE)), {}, "a mixed-size GPU can have best effort or equal share"),
        (FIXED, inventory(gpu(mode=None)), {}, "whether it is in mixed-size mode cannot be read"),
        (EQUAL, inventory(PASSED), {"gpu": ("3b:00.0",)}, "DirectPath I/O: the host's vGPU driver does not schedule"),
        (EQUAL, inventory(), {"gpu": ("86:00.0",)}, "esx-1.lab: has no GPU 0000:86:00.0"),
        (EQUAL, inventory(connected=False), {}, "esx-1.lab: is not connected"),
        (EQUAL, inventory(connected=None), {}, "esx-1.lab: is not connected"),
        (EQUAL, inventory(told=HostSettings(has_module=False)), {}, "esx-1.lab: has no kernel module nvidia"),
        (EQUAL, inventory(told=HostSettings(unread=("no",))), {}, "its module options cannot be read: no"),
        (EQUAL, inventory(told=settings('x="1')), {}, "a quote that is not closed"),
        (EQUAL, inventory(), {"driver_branch": "R535"}, "driver branch: needs R535, R550 there"),
        (EQUAL, inventory(told=settings("", ())), {"time_slice": "2ms"}, "the host's branch is not known"),
        (EQUAL, inventory(), {"time_slice": "31ms"}, "time slice 31 ms is not within 1 to 30 ms"),
        (EQUAL, inventory(), {"frequency": "62Hz"}, "frequency 62 Hz is not within 63 to 960 Hz"),
        (EQUAL, inventory(), {"frequency": "480Hz", "averaging": 61}, "averaging 61 is not within 1 to 60"),
        (EQUAL, inventory(told=settings("", (OLD,))), {"frequency": "480Hz"}, "before vGPU 15"),
        (EQUAL, inventory(), {"host": "esx-1*", "cluster": "c-1", "gpu": ("af:00.0",)}, "has no GPU 0000:af:00.0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(
    policy: SchedulerPolicy, seen: Inventory, options: dict[str, Any], rule: str
) -> None:
    [refusal] = rules(planned(policy, seen, **options))
    assert rule in refusal


@pytest.mark.parametrize(
    ("vm", "rule"),
    [
        (Vm("v", "desk", power=PowerState.SUSPENDED, devices=(VgpuDevice(1, "p"),)), "desk is suspended there, with"),
        (Vm("v", "desk", power=PowerState.SUSPENDED), "desk is suspended there, its devices cannot be read"),
        (
            Vm(
                "v",
                "desk",
                power=PowerState.OFF,
                devices=(),
                attributes={"gpuops.rotation": "2026-11-02T20:00Z desktop"},
            ),
            "desk is in the rotation of night 2026-11-02T20:00Z",
        ),
        (Vm("v", "desk", power=PowerState.SUSPENDED, devices=()), None),
        (Vm("v", "desk", power=PowerState.ON, devices=(VgpuDevice(1, "p"),)), None),
    ],
)
def test_a_host_that_somebody_must_find_as_it_was_is_refused_by_name(vm: Vm, rule: str | None) -> None:
    plan = planned(EQUAL, inventory(vms=(replace(vm, host="h-1"),)))
    assert plan.feasible is (rule is None)
    assert rule is None or rule in rules(plan)[0]


def test_a_refusal_of_one_gpu_names_those_that_could() -> None:
    plan = planned(FIXED, inventory(gpu(mode=VgpuMode.MIXED_SIZE), gpu("86:00.0"), gpu("af:00.0")))
    [rejection] = plan.rejections
    assert rejection.hint == "set the others alone: --gpu 0000:86:00.0 --gpu 0000:af:00.0"


def test_gpus_in_passthrough_are_no_part_of_a_host() -> None:
    plan = planned(EQUAL, inventory(PASSED, gpu("86:00.0")))
    assert [difference.gpu for step in plan.steps for difference in step.gpus] == [PciAddress.parse("86:00.0")]
    assert planned(EQUAL, inventory(PASSED)).because == ("esx-1.lab: none of its GPUs serves vGPUs; left as it is",)


def test_what_could_not_be_checked_is_a_warning() -> None:
    plan = planned(EQUAL, inventory(gpu(device=0xFFFF), gpu("86:00.0", A100, None)))
    assert plan.warnings == (
        "esx-1.lab 0000:3b:00.0: a GPU is not in the catalogue: whether it has policies is not checked",
        "esx-1.lab 0000:86:00.0: vCenter 8.0.3.0 does not tell whether it is in MIG mode",
    )


def test_an_older_api_has_no_mixed_size() -> None:
    old = replace(inventory(gpu(mode=None)), api_version="8.0.1.0")
    assert planned(FIXED, old).feasible


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": None}, "needs --host or --cluster"),
        ({"cluster": "nowhere"}, "no cluster 'nowhere'"),
        ({"time_slice": "2ms", "frequency": "480Hz"}, "exclude each other"),
        ({"averaging": 33}, "--averaging needs --frequency"),
        ({"time_slice": "2s"}, "--time-slice 2s: not a whole number of ms"),
        ({"frequency": "fast"}, "--frequency fast: not a whole number of Hz"),
        ({"gpu": ("first",)}, "'first' is not a PCI address"),
        ({"driver_branch": "new"}, "'new' is no driver branch"),
    ],
)
def test_what_means_nothing_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(EQUAL, inventory(), **options)


def test_best_effort_has_no_slices() -> None:
    with pytest.raises(UsageError, match="best effort has neither"):
        planned(BEST, inventory(), time_slice="2ms")
    with pytest.raises(HostNotFound):
        planned(BEST, inventory(), host="esx-9*")
