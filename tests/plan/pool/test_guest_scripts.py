"""Scripts for guests of a pool: what others wrote becomes no word of a shell, and what guests tell is not believed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.errors import Refused, StepFailed
from gpuops.model.workloads.lease_book import LentShare
from gpuops.model.workloads.remote_gpu import MeasuredShare
from gpuops.plan.pool.guest_scripts import (
    ClientCall,
    ServerCall,
    address,
    admitted,
    digest,
    measured,
    reachable,
)
from tests.pool_guests import loopback

SERVER = ServerCall(loopback(), "192.0.2.7", (0, 1))
CLIENT = ClientCall(loopback())
SHARE = LentShare("gpu-01", 1, 600)
HOSTILE = ["", "a b", "a;reboot", "$(reboot)", "../..", "-rf", "A1", "a" * 64, "a\nb", "ä"]


def run(script: str, home: Path) -> None:
    """As a guest does."""
    directory = home / "temporary"
    directory.mkdir(exist_ok=True)
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", script], env=environment, cwd=directory, check=True)


@pytest.mark.parametrize("lease", HOSTILE)
def test_an_id_that_is_none_is_in_no_script(lease: str) -> None:
    for make in (
        lambda: SERVER.admit(lease, SHARE, "192.0.2.9", 60, ""),
        lambda: SERVER.dismiss(lease, 1),
        lambda: CLIENT.key(lease),
        lambda: CLIENT.enter(lease, ""),
        lambda: CLIENT.leave(lease),
    ):
        with pytest.raises(Refused, match="no id of a lease"):
            make()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-01",
        "192.0.2.7; reboot",
        "192.0.2.300",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "fe80::1",
        "169.254.1.2",
        "fd00::1%\nreboot",
        "fd00::1%$(reboot)",
        "127.0.0.1",
        "::1",
        "255.255.255.255",
    ],
)
def test_an_address_by_which_nobody_is_reached_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a guest tells"):
        address(text)
    with pytest.raises(Refused, match="a guest tells"):
        SERVER.admit("a1", SHARE, text, 60, "")


def test_of_several_addresses_one_is_taken_by_which_others_reach_the_guest() -> None:
    assert reachable(["fe80::1", "2001:db8::7", "192.0.2.7"]) == "192.0.2.7"
    assert reachable(["fe80::1", "2001:DB8::7"]) == "2001:db8::7"
    assert reachable(["fe80::1", "nonsense"]) is reachable([]) is None


def test_an_environment_is_laid_down_as_it_is_whatever_is_in_it(tmp_path: Path) -> None:
    text = "export A='$(touch reboot)' \"b\" `c` \\\n"
    for _ in range(2):
        run(CLIENT.enter("a1", text), tmp_path)
    assert (tmp_path / ".gpuops-pool" / "env").read_text(encoding="utf-8") == text
    assert sorted(each.name for each in (tmp_path / ".gpuops-pool").rglob("*")) == ["a1", "env", "env", "lock"]
    run(CLIENT.leave("a1"), tmp_path)
    left = sorted(str(each.relative_to(tmp_path / ".gpuops-pool")) for each in (tmp_path / ".gpuops-pool").rglob("*"))
    assert left == ["ended", "ended/a1", "lock"]


def test_a_lease_that_has_ended_in_a_guest_does_not_come_back(tmp_path: Path) -> None:
    """A gpuops that stood still goes on where it was, whatever another machine has done since."""
    program = loopback()
    call = replace(SERVER, program=replace(program, server=replace(program.server, admit="true", dismiss="true")))
    late = (call.admit("a1", SHARE, "192.0.2.9", 60, ""), CLIENT.key("a1"), CLIENT.enter("a1", "text"))
    for script in (*late, call.dismiss("a1", 1), CLIENT.leave("a1")):
        run(script, tmp_path)
    before = sorted((tmp_path / ".gpuops-pool").rglob("*"))
    for script in late:
        with pytest.raises(subprocess.CalledProcessError):
            run(script, tmp_path)
    run(call.dismiss("a1", 1), tmp_path)
    assert sorted((tmp_path / ".gpuops-pool").rglob("*")) == before
    run(call.admit("a2", SHARE, "192.0.2.9", 60, ""), tmp_path)
    old = tmp_path / ".gpuops-pool" / "ended" / "a1"
    os.utime(old, (0, 0))
    run(CLIENT.leave("a2"), tmp_path)
    assert not old.exists(), "a day later nobody goes on with it"


def test_the_environment_is_that_of_the_last_lease_and_goes_with_it(tmp_path: Path) -> None:
    for lease in ("a1", "b2"):
        run(CLIENT.enter(lease, lease), tmp_path)
    run(CLIENT.leave("a1"), tmp_path)
    assert (tmp_path / ".gpuops-pool" / "env").read_text(encoding="utf-8") == "b2"


def test_what_a_guest_prints_is_read_to_the_letter() -> None:
    key = "0f" * 32
    assert digest(f"noise\nkey {key}\n", "ds-01") == key
    found = admitted("port 21000\ntold label-1\nport 1", SHARE, "192.0.2.7")
    assert (found.address, found.port, found.told) == ("192.0.2.7", 21000, "label-1")
    assert measured("a1 0 10\nb2-3 1 0\n", "gpu-01") == (MeasuredShare("a1", 0, 10), MeasuredShare("b2-3", 1, 0))


@pytest.mark.parametrize(
    "tell",
    [
        lambda: digest("key 0f", "ds-01"),
        lambda: digest(f"key {'0f' * 32}; reboot", "ds-01"),
        lambda: admitted("port x", SHARE, "192.0.2.7"),
        lambda: admitted("", SHARE, "192.0.2.7"),
        lambda: measured("a1 0", "gpu-01"),
        lambda: measured("a1 0 -5", "gpu-01"),
        lambda: measured("a1 0 5; reboot", "gpu-01"),
    ],
)
def test_what_a_guest_should_not_print_is_refused(tell: Callable[[], object]) -> None:
    with pytest.raises(StepFailed):
        tell()


def test_every_port_is_lent_once_and_then_none(tmp_path: Path) -> None:
    """Eight, in this program's file."""

    def admit(number: int) -> subprocess.CompletedProcess[str]:
        script = call.admit(f"a{number}", SHARE, "192.0.2.9", 60, "")
        return subprocess.run(
            ["/bin/sh", "-c", script], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    program = loopback()
    call = replace(SERVER, program=replace(program, server=replace(program.server, admit="true")))
    ports = [admitted(admit(number).stdout, SHARE, "192.0.2.7").port for number in range(8)]
    assert ports == list(range(21000, 21008))
    full = admit(8)
    assert (full.returncode, full.stdout) == (1, "every port is taken\n")
    assert not (tmp_path / ".gpuops-pool" / "a8.1").exists()
