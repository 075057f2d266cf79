"""What the nvidia-smi of a real GPU printed is read: an H100 SXM5 that a guest has whole, under driver R580.159.04.

The files of `h100_r580` are what the questions of this package and of `guest check` were answered there, as printed,
but for the numbers of the one board; the limit of power in `gpus` and `gpus535`, which were printed before it was
asked for, is that of `guest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuops.catalog import load
from gpuops.hostshell.nvidia_smi import (
    DETAILS,
    GPUS,
    GPUS_BEFORE_R535,
    INDEX,
    INSTANCES,
    QUERY,
    VGPUS,
    NvidiaSmi,
    read_instances,
)
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GpuHealth, PciAddress, RecoveryAction
from gpuops.model.guests.guest import GuestMode, GuestSystem
from gpuops.model.vcenter.host_settings import SmiGpu
from gpuops.plan.guest.check_output import read_answer
from tests.hostshell.server import ssh_server

PRINTED = Path(__file__).parent / "h100_r580"
NAME = "esx-01.lab"
GPU = PciAddress.parse("0000:00:06.0")
FILES = {
    GPUS: "gpus",
    GPUS_BEFORE_R535: "gpus535",
    QUERY: "query",
    INDEX: "index",
    INSTANCES: "lgi",
    VGPUS: "vgpu",
    DETAILS: "guest",
}
_PROFILE = re.compile(r"\|\s+0\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/(?P<total>\d+)\s")


def recorded_output(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text()


def answer(command: str) -> tuple[str, int]:
    """It ended with 0 each time, also where it had nothing to list."""
    return recorded_output(FILES[command]), 0


@pytest.fixture
def smi(tmp_path: Path) -> Iterator[Callable[[str], NvidiaSmi]]:
    with ExitStack() as stack:
        yield lambda name: NvidiaSmi(stack.enter_context(ssh_server(tmp_path, name, answer)).ssh)


def test_how_it_is_and_that_no_vgpu_runs_on_it(smi: Callable[[str], NvidiaSmi]) -> None:
    nvidia_smi = smi(NAME)
    readings = nvidia_smi.readings(NAME)
    assert readings.gpus == (
        SmiGpu(
            GPU,
            utilization_percent=0,
            clock_mhz=345,
            temperature_c=56,
            ecc_uncorrected=0,
            pcie_generation=5,
            pcie_width=16,
            power_limit_w=700,
            slowed_by_heat=False,
            slowed_by_power=False,
        ),
    )
    assert readings.vgpus == nvidia_smi.vgpu_use(NAME) == ()


def test_the_older_name_of_a_field_is_answered_alike() -> None:
    assert recorded_output("gpus535") == recorded_output("gpus")


def test_its_modes(smi: Callable[[str], NvidiaSmi]) -> None:
    [state] = smi(NAME).mig(NAME)
    assert (state.address, state.current, state.pending, state.ecc) == (GPU, False, False, True)
    assert state.health == GpuHealth(recovery_action=RecoveryAction.NONE, is_row_remap_pending=False)


def test_it_has_no_gpu_instances() -> None:
    assert read_instances(recorded_output("index"), recorded_output("lgi")) == {}


def test_a_guest_check() -> None:
    answer = read_answer(recorded_output("guest"))
    assert (answer.system, answer.toolkit, answer.runtimes) == (GuestSystem.LINUX, "13.0", ("13",))
    assert answer.frameworks == {"torch": "2.11.0", "numpy": "2.5.2", "horovod": None}
    assert answer.smi is not None
    [gpu] = answer.smi.gpus
    assert (answer.smi.driver, answer.smi.cuda, gpu.name) == ("580.159.04", "13.0", "NVIDIA H100 80GB HBM3")
    assert (gpu.ecc, gpu.mig, gpu.licence) == (GuestMode.ON, GuestMode.OFF, None)


def test_the_catalogue_has_its_gpu_instances() -> None:
    [board] = load(pci=[(NVIDIA_VENDOR_ID, 0x2330, 0x16C1)]).boards  # pci_device_id and pci_sub_system_id of it
    geometry = board.mig
    assert geometry is not None
    listed = {row["name"]: (int(row["id"]), int(row["total"])) for row in _PROFILE.finditer(recorded_output("lgip"))}
    assert {profile.name: (profile.id, profile.max_count) for profile in geometry.profiles} == listed
