"""The sections of a guest's answer: Linux and Windows, each program's formats, and answers that nobody asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.guests.guest import GuestAnswer, GuestSystem, RdmaLink
from gpuops.plan.guest.answer import read_answer
from gpuops.plan.guest.script import LONGEST_CMD, answer_path, over_ssh, removal, to_file
from tests.plan.guest.test_smi import R580

IBV = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
hca_id:\tmlx5_1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
"""
RDMA = '[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"ens1f0np0"}]'


def linux(*sections: str) -> GuestAnswer:
    return read_answer("\n".join(("@@ begin linux", *sections, "@@ end", "")))


def windows(*sections: str) -> GuestAnswer:
    return read_answer("\r\n".join(("\ufeff@@ begin windows", *sections, "@@ end", "")))


def test_all_that_a_linux_guest_tells() -> None:
    found = linux(
        "@@ clock\n1793642400", "@@ synchronized\nyes", "@@ installed\n580.105.08", f"@@ smi\nWARNING: a\n{R580}warned",
        "@@ toolkit\nnvcc: NVIDIA (R)\nCuda compilation tools, release 12.4, V12.4.131",
        "@@ runtimes\nlibcudart.so.12\nlibcudart.so.11.0", f"@@ rdma\n{RDMA}", "@@ frameworks\ntorch 2.5.1+cu124\njax ",
    )  # fmt: skip
    assert found.system is GuestSystem.LINUX
    assert (found.clock_s, found.synchronized, found.installed) == (1793642400.0, True, "580.105.08")
    assert found.smi is not None
    assert (found.smi.driver, found.smi_missing, found.smi_says) == ("580.105.08", False, "")
    assert (found.toolkit, found.runtimes) == ("12.4", ("12", "11.0"))
    assert found.frameworks == {"torch": "2.5.1+cu124", "jax": None}
    assert found.rdma == (RdmaLink("mlx5_0/1", active=True, state="ACTIVE"),)


def test_the_report_is_found_behind_a_warning_that_has_a_sign_of_it() -> None:
    found = linux(f"@@ smi\nWARNING: infoROM is corrupted at <0000:3b:00.0>\n{R580}")
    assert found.smi is not None and found.smi.driver == "580.105.08"


def test_all_that_a_windows_guest_tells() -> None:
    found = windows(
        "@@ clock", "1793642400", "@@ synchronized", "Sprungindikator: 3(nicht synchronisiert)", "@@ installed",
        "31.0.15.5274", "@@ smi", R580, "@@ toolkit", "@@ rdma", '[{"ifname":"Ethernet 2","state":"Up"}]',
    )  # fmt: skip
    assert (found.system, found.synchronized, found.installed) == (GuestSystem.WINDOWS, False, "552.74")
    assert found.smi is not None
    assert found.rdma == (RdmaLink("Ethernet 2", active=True, state="Up"),)


def test_a_guest_with_nothing() -> None:
    assert linux(
        "@@ clock", "@@ synchronized", "@@ installed", "@@ no-smi", "@@ toolkit", "@@ runtimes"
    ) == GuestAnswer(GuestSystem.LINUX, smi_missing=True)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("@@ synchronized\nLeap status     : Not synchronised", "synchronized", False),
        ("@@ synchronized\nLeap status     : Normal", "synchronized", True),
        ("@@ synchronized\nno", "synchronized", False),
        ("@@ synchronized\nn/a", "synchronized", None),
        ('@@ toolkit\n{"cuda": {"name": "CUDA SDK", "version": "12.6.2"}}', "toolkit", "12.6.2"),
        ('@@ toolkit\n{"cuda": [1]}', "toolkit", None),
        (f"@@ ibv\n{IBV}", "rdma", (RdmaLink("mlx5_0/1", True, "ACTIVE"), RdmaLink("mlx5_1/1", False, "DOWN"))),
        ("@@ rdma\n[]", "rdma", ()),
        ("@@ rdma\nnone", "rdma", None),
        (f"@@ rdma\n{'[' * 60_000}", "rdma", None),
        (f"@@ rdma\n[{'7' * 5000}]", "rdma", None),
        ('@@ rdma\n[1, {"ifname": "\\u001b]0;x"}]', "rdma", (RdmaLink("a device", False, "unknown"),) * 2),
        ("@@ smi\nNo devices were found", "smi_says", "No devices were found"),
        ("@@ clock\n-1", "clock_s", None),
        (f"@@ clock\n{'9' * 4000}", "clock_s", None),
        ("@@ no-python", "python_missing", True),
    ],
)
def test_each_format_and_what_is_none(section: str, field: str, value: object) -> None:
    assert getattr(linux(section), field) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin"),
        ("@@ begin linux\n@@ clock\n1", "breaks off"),
        ("@@ begin solaris\n@@ end", "does not begin"),
    ],
)
def test_another_program_s_output_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_answer(text)


@given(st.text(max_size=200), st.sampled_from(["smi", "rdma", "ibv", "toolkit", "clock", "frameworks", "installed"]))
def test_any_section_is_read_without_an_error(text: str, name: str) -> None:
    marked = text.replace("@@", "")
    assert linux(f"@@ {name}", marked).system is GuestSystem.LINUX
    assert windows(f"@@ {name}", marked).system is GuestSystem.WINDOWS


def test_the_program_of_linux_is_run_by_a_real_shell_and_its_answer_is_read() -> None:
    """Whatever this machine has: the shell takes it, and every section is there."""
    shell = shutil.which("sh")
    assert shell is not None
    done = subprocess.run(
        [shell, "-c", over_ssh(GuestSystem.LINUX, ["pip", "none-such"])], capture_output=True, timeout=60
    )
    found = read_answer(done.stdout.decode())
    assert found.clock_s is not None
    assert found.frameworks["none-such"] is None
    assert found.frameworks.keys() == {"pip", "none-such"}
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("timedatectl", "chronyc", "synchronized"),
    [
        ("echo yes", "exit 1", True),
        ("echo no", "echo 'Leap status     : Normal'", True),
        ("echo no", "echo 'Leap status     : Not synchronised'", False),
        ("echo no", "echo '506 Cannot talk to daemon'; exit 1", False),
        ("exit 1", "echo 'Leap status     : Normal'", True),
        ("exit 1", "exit 1", None),
    ],
)
def test_either_time_service_of_linux_speaks_for_the_clock(
    tmp_path: Path, timedatectl: str, chronyc: str, synchronized: bool | None
) -> None:
    assert told_with(tmp_path, timedatectl=timedatectl, chronyc=chronyc).synchronized is synchronized


@pytest.mark.parametrize(
    ("rdma", "link"),
    [(f"echo '{RDMA}'", "mlx5_0/1"), ("echo 'no option -j' >&2; exit 255", "mlx5_1/1"), ("echo '[]'", None)],
)
def test_an_rdma_that_tells_nothing_leaves_it_to_ibv_devinfo(tmp_path: Path, rdma: str, link: str | None) -> None:
    told = told_with(tmp_path, rdma=rdma, ibv_devinfo="echo 'hca_id: mlx5_1'; echo ' state: PORT_ACTIVE (4)'")
    assert told.rdma is not None and [each.name for each in told.rdma] == ([link] if link else [])


def told_with(directory: Path, **programs: str) -> GuestAnswer:
    """What a real shell tells where these programs do that."""
    for name, does in programs.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    path = {"PATH": f"{directory}:{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", "-c", over_ssh(GuestSystem.LINUX, [])], capture_output=True, timeout=60, env=path)
    return read_answer(done.stdout.decode())


def test_the_answer_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    """As VMware Tools start it: a shell takes program and arguments as one line."""
    file = tmp_path / "gpuops-1.txt"
    call = to_file(GuestSystem.LINUX, [], str(file))
    for _ in range(2):
        done = subprocess.run(f"{call.program} {call.arguments}", shell=True, capture_output=True, timeout=60)
    assert done.returncode != 0, "a file that is there is not written over"
    assert file.stat().st_mode & 0o077 == 0
    assert read_answer(file.read_text(encoding="utf-8")).system is GuestSystem.LINUX
    call = removal(GuestSystem.LINUX, str(file))
    subprocess.run(f"{call.program} {call.arguments}", shell=True, check=True, timeout=60)
    assert not file.exists()


def test_the_program_of_windows_fits_into_a_command_line() -> None:
    names = [f"framework-{number:02}" for number in range(16)]
    call = to_file(GuestSystem.WINDOWS, names, answer_path(GuestSystem.WINDOWS, "f" * 32))
    assert len(f"{call.program} {call.arguments}") < LONGEST_CMD
    assert call.arguments.endswith(f' > C:\\Windows\\Temp\\gpuops-{"f" * 32}.txt"')
    script = b64decode(over_ssh(GuestSystem.WINDOWS, names).rpartition(" ")[2]).decode("utf-16-le")
    assert script.startswith("[Console]::OutputEncoding")
    assert "framework-15" in script
    assert '"' not in script.replace('"$env:', "").replace('nvidia-smi.exe"', ""), "quotes stand around paths alone"
