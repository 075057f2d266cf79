"""Each GPU is judged by itself: one sick GPU changes nothing of the others; and what a real H100 printed is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from gpuops.catalog import load
from gpuops.errors import Refused
from gpuops.hostshell.nvidia_smi import (
    DETAILS,
    GPUS,
    GPUS_BEFORE_R535,
    INDEX,
    INSTANCES,
    QUERY,
    VGPUS,
    NvidiaSmi,
    read_details,
    read_instances,
)
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GpuHealth, PciAddress, RecoveryAction
from gpuops.model.guests.guest import GuestMode, GuestSystem
from gpuops.model.vcenter.host_settings import SmiGpu, SmiState
from gpuops.plan.guest.check_output import read_answer
from tests.hostshell.server import ssh_server

NAME = "esx-01.lab"
FIRST, SICK = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:af:00.0")
ROW = "00000000:3B:00.0, Enabled, Enabled, Enabled, Enabled"
SICK_ROW = ROW.replace("3B", "AF")
CORRUPT = "WARNING: infoROM is corrupted at gpu 0000:AF:00.0"
LOST = (
    "Unable to determine the device handle for GPU1: 0000:AF:00.0: GPU is lost.  Reboot the system to recover this GPU"
)
READING = "00000000:3B:00.0, 35, 1410, 61, 2, 4, 16, 300.00, 0x0000000000000000"
LISTING = """
GPU 00000000:3B:00.0
    Active vGPUs                          : 1
    vGPU ID                               : 3251634213
        VM Name                           : ml-01
        vGPU Name                         : GRID A100-3-20C
        GPU Instance ID                   : 2
GPU 00000000:AF:00.0
    Active vGPUs                          : 0
"""
TABLE = "|   0  MIG 3g.20gb          9        2          4:4     |"


def states(tmp_path: Path, text: str, status: int = 0) -> list[SmiState]:
    with ssh_server(tmp_path, NAME, lambda command: (text if command == QUERY else "", status)) as host:
        return list(NvidiaSmi(host.ssh).mig(NAME))


def test_an_answer_with_a_corrupt_inforom_is_complete(tmp_path: Path) -> None:
    first, sick = states(tmp_path, f"{ROW}\n{SICK_ROW}\n{CORRUPT}\n", 14)
    assert (first.current, first.health) == (True, GpuHealth())
    assert (sick.current, sick.pending, sick.health) == (True, True, GpuHealth(has_corrupt_inforom=True))


@pytest.mark.parametrize("status", [15, 255, 6])
def test_a_gpu_that_is_lost_is_named_and_the_others_are_read(tmp_path: Path, status: int) -> None:
    first, sick = states(tmp_path, f"{LOST}\n{ROW}\n", status)
    assert first == SmiState(FIRST, True, True, True, True)
    assert sick == SmiState(SICK, None, None, unread="lost", health=GpuHealth(is_lost=True))


@pytest.mark.parametrize(
    ("word", "unread", "health"),
    [
        ("[GPU requires reset]", "GPU requires reset", GpuHealth(requires_reset=True)),
        ("[GPU is lost]", "GPU is lost", GpuHealth(is_lost=True)),
        ("[Unknown Error]", "Unknown Error", GpuHealth(error="Unknown Error")),
        ("[Insufficient Permissions]", "Insufficient Permissions", GpuHealth()),
        ("", "nothing", GpuHealth()),
        ("[N/A]", "", GpuHealth()),
        ("N/A", "", GpuHealth()),
        ("[Not Supported]", "", GpuHealth()),
    ],
)
def test_only_two_words_mean_that_there_is_no_mig_mode(
    tmp_path: Path, word: str, unread: str, health: GpuHealth
) -> None:
    first, sick = states(tmp_path, f"{ROW}\n00000000:AF:00.0, {word}, {word}, Enabled, Enabled\n")
    assert first.current is True
    assert (sick.current, sick.unread, sick.health) == (None, unread, health)


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("some sentence", None),
        ("00000000:AF:00.0, Enabled", "an answer that cannot be read"),
        (f"{SICK_ROW}\n{SICK_ROW.replace('Enabled', 'Disabled')}", "two answers that differ"),
    ],
)
def test_an_odd_line_takes_nothing_from_the_others(tmp_path: Path, line: str, unread: str | None) -> None:
    first, *other_gpus = states(tmp_path, f"{ROW}\n{line}\n")
    assert first.current is True
    assert [state.unread for state in other_gpus] == ([] if unread is None else [unread])


def test_vgpus_are_read_beside_a_sick_gpu(tmp_path: Path) -> None:
    answers = {
        VGPUS: f"{LISTING}{CORRUPT}\n",
        INDEX: f"0, 00000000:3B:00.0\n1, 00000000:AF:00.0\n{CORRUPT}\n",
        INSTANCES: f"{TABLE}\n{CORRUPT}\n",
    }
    with ssh_server(tmp_path, NAME, lambda command: (answers[command], 14)) as host:
        [vgpu] = NvidiaSmi(host.ssh).vgpus(NAME)
        assert (vgpu.vm_name, vgpu.start) == ("ml-01", 4)
        assert len(NvidiaSmi(host.ssh).vgpu_use(NAME)) == 1


def test_a_vgpu_that_cannot_be_read_takes_those_of_its_gpu_alone(tmp_path: Path) -> None:
    odd = f"{LISTING}    vGPU ID       : 7\n        VM Name : ml-02\n"
    with ssh_server(tmp_path, NAME, lambda command: (odd, 0)) as host:
        assert [vgpu.vm_name for vgpu in NvidiaSmi(host.ssh).vgpu_use(NAME)] == ["ml-01"]


def test_instances_that_cannot_be_listed_are_still_refused(tmp_path: Path) -> None:
    answers = {VGPUS: (LISTING, 0), INDEX: ("0, 00000000:3B:00.0\n", 0), INSTANCES: ("Insufficient Permissions\n", 4)}
    with (
        ssh_server(tmp_path, NAME, lambda command: answers[command]) as host,
        pytest.raises(Refused, match="exit status 4: Insufficient Permissions"),
    ):
        NvidiaSmi(host.ssh).vgpus(NAME)


def test_readings_of_the_others_are_kept(tmp_path: Path) -> None:
    answers = {GPUS: f"{LOST}\n{READING}\n00000000:D8:00.0, 1\n", VGPUS: LISTING}
    with ssh_server(tmp_path, NAME, lambda command: (answers[command], 15)) as host:
        readings = NvidiaSmi(host.ssh).readings(NAME)
    assert [(gpu.address, gpu.temperature_c) for gpu in readings.gpus] == [(FIRST, 61)]
    assert host.asked == [GPUS, VGPUS], "it is no older driver"


def details(*gpus: str) -> str:
    texts = "".join(f"<gpu id='x'><pci><pci_bus_id>{text}</gpu>" for text in gpus)
    return f"{LOST}\n<?xml version='1.0'?>\n<nvidia_smi_log>{texts}</nvidia_smi_log>\n{CORRUPT}\n"


@pytest.mark.parametrize(
    ("element", "health"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", GpuHealth(recovery_action=RecoveryAction.NONE)),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", GpuHealth(recovery_action=RecoveryAction.RESET)),
        (
            "<gpu_recovery_action>Drain and Reset</gpu_recovery_action>",
            GpuHealth(recovery_action=RecoveryAction.DRAIN_AND_RESET),
        ),
        ("<gpu_recovery_action>N/A</gpu_recovery_action>", GpuHealth()),
        (
            "<gpu_recovery_action>Bus Reset</gpu_recovery_action>",
            GpuHealth(requires_reset=True, error="recovery action Bus Reset"),
        ),
        ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", GpuHealth(requires_reset=True)),
        (
            "<gpu_reset_status><reset_required>Functionality has been deprecated</reset_required></gpu_reset_status>",
            GpuHealth(),
        ),
        (
            "<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>",
            GpuHealth(is_row_remap_pending=True),
        ),
        ("<remapped_rows>N/A</remapped_rows>", GpuHealth()),
        ("<processes><process_info><process_name>GPU is lost</process_name></process_info></processes>", GpuHealth()),
        ("<mig_mode><current_mig>[GPU requires reset]</current_mig></mig_mode>", GpuHealth(requires_reset=True)),
    ],
)
def test_details_are_read_between_sentences(element: str, health: GpuHealth) -> None:
    text = details(f"00000000:3B:00.0</pci_bus_id></pci>{element}", "odd</pci_bus_id></pci>")
    assert read_details(text) == {FIRST: health}


@pytest.mark.parametrize("text", ["", "no XML", details("x</gpu>"), "<nvidia_smi_log></nvidia_smi_log>"])
def test_details_that_cannot_be_read_are_unknown(text: str) -> None:
    assert read_details(text) == {}


def test_details_join_what_the_short_answer_reports(tmp_path: Path) -> None:
    answers = {
        QUERY: f"{ROW}\n",
        DETAILS: details("00000000:3B:00.0</pci_bus_id></pci><gpu_recovery_action>Reset</gpu_recovery_action>"),
    }
    with ssh_server(tmp_path, NAME, lambda command: (answers[command], 0)) as host:
        [state] = NvidiaSmi(host.ssh).mig(NAME)
    assert (state.current, state.health.vgpu_obstacle != "") == (True, True)


@pytest.mark.parametrize(
    ("text", "status", "is_done"),
    [
        (f"Enabled MIG Mode for GPU 00000000:3B:00.0\nAll done.\n{CORRUPT}\n", 14, True),
        (f"{LOST}\nEnabled MIG Mode for GPU 00000000:3B:00.0\nAll done.\n", 15, True),
        (f"{LOST}\n", 15, False),
        ("Unable to enable MIG Mode for GPU 00000000:3B:00.0: In use by another client\n", 19, False),
    ],
)
def test_a_switch_is_judged_by_its_own_gpu(tmp_path: Path, text: str, status: int, is_done: bool) -> None:
    with ssh_server(tmp_path, NAME, lambda command: (text, status)) as host:
        expected = nullcontext() if is_done else pytest.raises(Refused, match=f"exit status {status}")
        with expected:
            NvidiaSmi(host.ssh).set_mig(NAME, [FIRST], on=True)


# What an H100 SXM5 that a guest has completely printed under driver R580.159.04, but for the numbers of the one board;
# the limit of power in `gpus` and `gpus535`, which were printed before it was asked for, is that of `guest`.
PRINTED = Path(__file__).parent / "h100_r580"
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
