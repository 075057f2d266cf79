"""The sections of a guest's answer: Linux and Windows, the formats of each program, and unexpected sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.guests.guest import GuestAnswer, GuestSystem, RdmaLink
from gpuops.plan.guest.check_output import read_answer
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
    answer = linux(
        "@@ clock\n1793642400", "@@ synchronized\nyes", "@@ installed\n580.105.08", f"@@ smi\nWARNING: a\n{R580}warned",
        "@@ toolkit\nnvcc: NVIDIA (R)\nCuda compilation tools, release 12.4, V12.4.131",
        "@@ runtimes\nlibcudart.so.12\nlibcudart.so.11.0", f"@@ rdma\n{RDMA}", "@@ frameworks\ntorch 2.5.1+cu124\njax ",
    )  # fmt: skip
    assert answer.system is GuestSystem.LINUX
    assert (answer.clock_s, answer.synchronized, answer.installed) == (1793642400.0, True, "580.105.08")
    assert answer.smi is not None
    assert (answer.smi.driver, answer.smi_missing, answer.smi_says) == ("580.105.08", False, "")
    assert (answer.toolkit, answer.runtimes) == ("12.4", ("12", "11.0"))
    assert answer.frameworks == {"torch": "2.5.1+cu124", "jax": None}
    assert answer.rdma == (RdmaLink("mlx5_0/1", active=True, state="ACTIVE"),)


def test_the_report_is_found_behind_a_warning_that_has_a_sign_of_it() -> None:
    answer = linux(f"@@ smi\nWARNING: infoROM is corrupted at <0000:3b:00.0>\n{R580}")
    assert answer.smi is not None and answer.smi.driver == "580.105.08"


def test_all_that_a_windows_guest_tells() -> None:
    answer = windows(
        "@@ clock", "1793642400", "@@ synchronized", "Sprungindikator: 3(nicht synchronisiert)", "@@ installed",
        "31.0.15.5274", "@@ smi", R580, "@@ toolkit", "@@ rdma", '[{"ifname":"Ethernet 2","state":"Up"}]',
    )  # fmt: skip
    assert (answer.system, answer.synchronized, answer.installed) == (GuestSystem.WINDOWS, False, "552.74")
    assert answer.smi is not None
    assert answer.rdma == (RdmaLink("Ethernet 2", active=True, state="Up"),)


def test_a_guest_with_nothing() -> None:
    assert linux(
        "@@ clock", "@@ synchronized", "@@ installed", "@@ no-smi", "@@ toolkit", "@@ runtimes"
    ) == GuestAnswer(GuestSystem.LINUX, smi_missing=True)


@pytest.mark.parametrize(
    ("section", "field", "expected"),
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
def test_each_format_and_what_is_none(section: str, field: str, expected: object) -> None:
    assert getattr(linux(section), field) == expected


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
