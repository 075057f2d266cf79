"""Each GPU is judged by itself: one sick GPU takes nothing away from what nvidia-smi reports about the others."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from gpuops.errors import Refused
from gpuops.hostshell.nvidia_smi import DETAILS, GPUS, INDEX, INSTANCES, QUERY, VGPUS, NvidiaSmi, read_details
from gpuops.model.devices.gpu import GpuHealth, PciAddress, RecoveryAction
from gpuops.model.vcenter.host_settings import SmiState
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
