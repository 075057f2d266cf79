"""The verdicts on one guest, row by row: what passes, fails and is unknown; the last two have a next move."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuops.catalog.catalog_files import load_drivers
from gpuops.errors import UsageError
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.model.guests.guest import (
    GuestAnswer,
    GuestGpu,
    GuestMode,
    GuestReply,
    GuestSystem,
    GuestWay,
    MustHave,
    RdmaLink,
    SmiReport,
)
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SoftwarePackage
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState, VgpuDevice, Vm
from gpuops.plan.guest.guest_check import GuestQuestion, check_reachable, parse_frameworks, ssh_door
from gpuops.plan.guest.rows import GuestNeeds, GuestRow, GuestState, guest_rows

BEFORE = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
AFTER = datetime(2026, 11, 2, 18, 0, 4, tzinfo=UTC)
REPLY = GuestReply("", before=BEFORE, after=AFTER)
GPU = GuestGpu(
    "NVIDIA A40-8C", "Licensed (Expiry: 2026-11-3 17:30:0 GMT)", *[GuestMode.ON] * 2, *[GuestMode.ABSENT] * 2
)
READY = GuestAnswer(
    GuestSystem.LINUX,
    clock_s=BEFORE.timestamp() + 1,
    synchronized=True,
    installed="580.65.06",
    smi=SmiReport("580.65.06", "13.0", (GPU,)),
    toolkit="12.4",
    runtimes=("12",),
    frameworks={"torch": "2.5.1+cu124"},
    rdma=(RdmaLink("mlx5_0/1", active=True, state="ACTIVE"),),
)
WITH_VGPU = Vm("vm-1", "ml-01", power=PowerState.ON, tools_running=True, devices=(VgpuDevice(1, "nvidia_a40-8c"),))
WHOLE = replace(
    WITH_VGPU, devices=(DirectPathDevice(1, PciAddress.parse("0000:3b:00.0"), NVIDIA_VENDOR_ID, 0x2235, "id"),)
)
TORCH = GuestNeeds(parse_frameworks(["torch>=2.3"]))


def host(driver: str) -> Host:
    package = SoftwarePackage(
        "NVD-VMware_ESXi_8.0.0_Driver", vendor="NVIDIA", version=f"{driver}-1OEM.800.1.0.20613240"
    )
    return Host("host-1", "esx-01", settings=HostSettings(packages=(package,)))


def rows(answer: GuestAnswer, vm: Vm = WITH_VGPU, on: Host | None = None, needs: GuestNeeds = TORCH) -> list[GuestRow]:
    return list(guest_rows(vm, on or host("580.65.05"), answer, REPLY, needs, load_drivers()))


def row(
    check: str, answer: GuestAnswer, vm: Vm = WITH_VGPU, on: Host | None = None, needs: GuestNeeds = TORCH
) -> GuestRow:
    [check_row] = [candidate for candidate in rows(answer, vm, on, needs) if candidate.check == check]
    assert bool(check_row.next_move) is (check_row.state is not GuestState.PASS)
    return check_row


def with_driver(driver: str, cuda: str | None = "13.0", system: GuestSystem = GuestSystem.LINUX) -> GuestAnswer:
    return replace(READY, system=system, smi=SmiReport(driver, cuda, (GPU,)))


def answer_with(*gpus: GuestGpu) -> GuestAnswer:
    return replace(READY, smi=SmiReport("580.65.06", "13.0", gpus))


def test_one_that_is_ready_passes_in_every_row() -> None:
    check_rows = rows(READY)
    assert {check_row.state for check_row in check_rows} == {GuestState.PASS}
    assert [check_row.check for check_row in check_rows] == [
        "guest", "driver", "GPUs", "licence", "CUDA", "CUDA runtime", "CUDA toolkit", "ECC", "MIG", "torch", "RDMA",
        "clock", "time service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("on", "driver", "system", "state", "says"),
    [
        ("580.65.05", "580.105.08", "linux", "pass", "580.105.08 (R580) on a host with R580"),
        ("580.65.05", "535.247.01", "linux", "pass", "535.247.01 (R535) on a host with R580"),
        ("580.65.05", "573.48", "windows", "pass", "573.48 (R570) on a host with R580"),
        ("535.161.05", "470.239.06", "linux", "pass", "470.239.06 (R470) on a host with R535"),
        ("525.85.07", "527.41", "windows", "pass", "527.41 (R525) on a host with R525"),
        ("580.65.05", "550.90.07", "linux", "unknown", "its documents list R580, R570 or R535"),
        ("580.65.05", "595.58.03", "linux", "unknown", "its documents list R580, R570 or R535"),
        ("550.90.05", "550.90.07", "linux", "unknown", "no document on R550 is known here"),
        ("580.65.05", "552.74", "windows", "unknown", "the branch of this Windows driver is unknown to gpuops"),
        ("418.226", "430.46", "linux", "fail", "they cannot be used together"),
        ("418.226", "418.226.00", "linux", "pass", "(R418) on a host with R418"),
    ],
)
def test_the_driver_against_the_vgpu_manager_of_its_host(
    on: str, driver: str, system: str, state: str, says: str
) -> None:
    driver_row = row("driver", with_driver(driver, system=GuestSystem(system)), on=host(on))
    assert driver_row.state == state
    assert says in driver_row.says


def test_without_the_host_s_driver_it_is_unknown_and_with_a_whole_gpu_it_is_not_asked() -> None:
    bare = Host("host-1", "esx-01", settings=HostSettings(packages=()))
    for on in (bare, Host("host-1", "esx-01")):
        assert row("driver", READY, on=on).state is GuestState.UNKNOWN
    assert row("driver", with_driver("595.58.03"), WHOLE, bare).state is GuestState.PASS


@pytest.mark.parametrize(
    ("answer", "state", "says"),
    [
        (GuestAnswer(GuestSystem.LINUX, smi_missing=True), "fail", "nvidia-smi is not installed"),
        (
            GuestAnswer(GuestSystem.LINUX, smi_says="No devices were found", installed="595.58.03"),
            "fail",
            "595.58.03 is installed and does not work: nvidia-smi prints 'No devices were found'",
        ),
        (
            GuestAnswer(GuestSystem.LINUX, smi_says="an entity", smi_unreadable=True),
            "unknown",
            "cannot be read: an entity",
        ),
    ],
)
def test_without_a_report_there_is_one_row_of_the_gpu(answer: GuestAnswer, state: str, says: str) -> None:
    driver_row = row("driver", answer)
    assert driver_row.state == state
    assert says in driver_row.says
    assert state == "unknown" or driver_row.next_move == "install in it a guest driver of R580, R570 or R535"
    assert not {"GPUs", "licence", "CUDA", "ECC", "MIG"} & {check_row.check for check_row in rows(answer)}


@pytest.mark.parametrize(
    ("answer", "vm", "state"),
    [
        (answer_with(replace(GPU, licence="Unlicensed (Restricted)")), WITH_VGPU, "fail"),
        (answer_with(replace(GPU, licence=None)), WITH_VGPU, "unknown"),
        (answer_with(replace(GPU, licence="Expired")), WITH_VGPU, "unknown"),
        (answer_with(), WITH_VGPU, "unknown"),
        (answer_with(GPU, replace(GPU, licence="Unlicensed")), WITH_VGPU, "fail"),
        (answer_with(replace(GPU, licence=None)), WHOLE, "pass"),
        (answer_with(replace(GPU, licence="Unlicensed")), WHOLE, "fail"),
    ],
)
def test_the_licence(answer: GuestAnswer, vm: Vm, state: str) -> None:
    assert row("licence", answer, vm).state == state


@pytest.mark.parametrize(
    ("check", "answer", "state", "says"),
    [
        ("GPUs", answer_with(), "fail", "0 of 1"),
        ("GPUs", answer_with(GPU, GPU), "fail", "2 of 1: NVIDIA A40-8C"),
        ("ECC", answer_with(replace(GPU, ecc_pending=GuestMode.OFF)), "fail", "on, and changes at the next reboot"),
        (
            "ECC",
            answer_with(GPU, replace(GPU, ecc=GuestMode.OFF, ecc_pending=GuestMode.OFF)),
            "fail",
            "differs: on, off",
        ),
        ("ECC", answer_with(replace(GPU, ecc=None, ecc_pending=None)), "unknown", "not reported"),
        ("ECC", answer_with(), "unknown", "no GPU is seen"),
        ("MIG", answer_with(replace(GPU, mig=GuestMode.OFF, mig_pending=GuestMode.ON)), "fail", "off, and changes"),
        ("MIG", answer_with(replace(GPU, mig=GuestMode.ON, mig_pending=GuestMode.ON)), "pass", "on"),
        ("CUDA", with_driver("580.65.06", None), "unknown", "no version"),
        ("CUDA toolkit", replace(READY, toolkit="13.0"), "pass", "13.0"),
        (
            "CUDA toolkit",
            replace(with_driver("570.172.08", "12.8"), toolkit="12.9"),
            "pass",
            "12.9, by minor version comp",
        ),
        (
            "CUDA toolkit",
            replace(with_driver("570.172.08"), toolkit="13.1"),
            "fail",
            "needs driver 580 or later, and 570.172.08",
        ),
        ("CUDA toolkit", replace(with_driver("451.00", system=GuestSystem.WINDOWS), toolkit="11.8"), "fail", "452.39"),
        ("CUDA toolkit", replace(READY, toolkit="9.2"), "unknown", "the driver that it needs is unknown"),
        ("CUDA runtime", replace(with_driver("470.1"), runtimes=("12.4.127",)), "fail", "needs driver 525"),
        ("torch", replace(READY, frameworks={"torch": "2.2.9"}), "fail", "2.2.9 is installed; torch>=2.3 is required"),
        ("torch", replace(READY, frameworks={"torch": None}), "fail", "not installed"),
        ("torch", replace(READY, frameworks={}), "fail", "not installed"),
        ("torch", replace(READY, frameworks={"torch": "\x1b[2J"}), "unknown", "is not valid"),
        ("torch", replace(READY, python_missing=True), "unknown", "no python3"),
        ("RDMA", replace(READY, rdma=(RdmaLink("mlx5_0/1", False, "DOWN"),)), "fail", "mlx5_0/1 DOWN"),
        ("clock", replace(READY, clock_s=None), "unknown", "its time is unknown"),
        ("clock", replace(READY, clock_s=BEFORE.timestamp() - 5), "pass", "within 5 s"),
        ("clock", replace(READY, clock_s=BEFORE.timestamp() - 67), "fail", "at least 66 s behind vCenter's"),
        ("clock", replace(READY, clock_s=AFTER.timestamp() + 90), "fail", "at least 90 s ahead of vCenter's"),
        ("time service", replace(READY, synchronized=None), "unknown", "it is unknown whether"),
        ("time service", replace(READY, synchronized=False), "fail", "not synchronized"),
    ],
)
def test_each_row(check: str, answer: GuestAnswer, state: str, says: str) -> None:
    check_row = row(check, answer)
    assert (check_row.state.value, says in check_row.says) == (state, True), check_row.says


def test_toolkit_and_rdma_are_missed_only_where_they_are_expected() -> None:
    without = replace(READY, toolkit=None, rdma=None)
    checks = {check_row.check for check_row in rows(without)}
    assert not {"CUDA toolkit", "RDMA"} & checks
    needs = GuestNeeds(expected=frozenset(MustHave))
    assert row("CUDA toolkit", without, needs=needs).state is GuestState.FAIL
    assert row("RDMA", without, needs=needs).state is GuestState.UNKNOWN
    assert row("RDMA", replace(without, rdma=()), needs=needs).state is GuestState.FAIL


def test_who_is_not_asked() -> None:
    off = check_reachable(replace(WITH_VGPU, power=PowerState.OFF), GuestSystem.LINUX, tools=True)
    assert off is not None
    assert off.why_not == "the VM is off"
    silent = replace(WITH_VGPU, tools_running=None)
    assert check_reachable(silent, GuestSystem.LINUX, tools=True) is not None
    assert check_reachable(silent, GuestSystem.LINUX, tools=False) is None
    assert check_reachable(WITH_VGPU, None, tools=True) is not None
    assert check_reachable(WITH_VGPU, GuestSystem.LINUX, tools=True) is None


@pytest.mark.parametrize(
    "texts",
    [
        ["torch;x"],
        ["torch >= two"],
        ["$(reboot)"],
        ["torch[cuda]"],
        ["a @ https://x"],
        ["torch", "torch>2"],
        ["x"] * 17,
        [""],
    ],
)
def test_what_is_no_framework_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="--framework"):
        parse_frameworks(texts)


def test_which_options_go_together() -> None:
    for question, policy in (
        (GuestQuestion(), False),
        (GuestQuestion("a", "b"), True),
        (GuestQuestion(pool="a"), False),
        (GuestQuestion("a"), True),
    ):
        with pytest.raises(UsageError):
            question.checked(policy=policy)
    assert ssh_door(GuestWay.SSH, None, None, None) == SshDoor("root", "{vm}", 22)
    with pytest.raises(UsageError, match="need --via ssh"):
        ssh_door(GuestWay.TOOLS, "root", None, None)
    with pytest.raises(UsageError, match="is a single address"):
        ssh_door(GuestWay.SSH, None, "10.0.0.1", None)
