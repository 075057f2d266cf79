"""Guests asked over real SSH: what comes back is their answer, and one that cannot be entered says why."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.hostshell import guest_ssh
from gpuops.hostshell.guest_ssh import SshAnswers
from gpuops.model.guests.guest import GuestReply, GuestSystem
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.guest.check_output import read_answer
from tests.hostshell.server import BREAKS_OFF, NEVER_ENDS, STAYS, Answer, ShellHost, ssh_server

NOW = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
GUEST = Vm("vm-1", "ml-01")


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Callable[[Answer], ShellHost]]:
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(ssh_server(tmp_path, "ml-01.lab", answer))


def ask(guest: ShellHost, *vms: Vm, system: GuestSystem = GuestSystem.LINUX) -> Mapping[str, GuestReply]:
    door = SshDoor("checker", "{vm}.lab", guest.ssh.port)
    answers = SshAnswers(door, guest.known_hosts, guest.ssh.key, lambda: NOW, lambda host: "127.0.0.1")
    return answers.replies([(vm, system) for vm in vms or (GUEST,)], ["pip"])


@pytest.mark.long
def test_its_answer_comes_back_with_the_time_around_it(enter: Callable[[Answer], ShellHost]) -> None:
    def answer(command: str) -> tuple[str, int]:
        """As a guest does that runs the command by the shell of its user."""
        process = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True, timeout=60)
        return process.stdout.decode(), 0

    guest = enter(answer)
    reply = ask(guest)["vm-1"]
    assert (reply.before, reply.after) == (NOW, NOW)
    assert reply.text is not None
    assert read_answer(reply.text).frameworks.keys() == {"pip"}
    [command] = guest.asked
    assert "\n" not in command


def test_windows_is_asked_by_powershell(enter: Callable[[Answer], ShellHost]) -> None:
    guest = enter(lambda command: ("@@ begin windows\r\n@@ end\r\n", 0))
    assert ask(guest, system=GuestSystem.WINDOWS)["vm-1"].text == "@@ begin windows\r\n@@ end\r\n"
    assert guest.asked[0].startswith("powershell -NoProfile -NonInteractive -EncodedCommand ")


def test_a_guest_whose_key_is_not_known_is_not_entered_and_holds_up_no_other(
    enter: Callable[[Answer], ShellHost],
) -> None:
    guest = enter(lambda command: ("@@ begin linux\n@@ end\n", 0))
    replies = ask(guest, Vm("vm-2", "ml-02"), GUEST, Vm("vm-3", "no host"))
    assert replies["vm-1"].text is not None
    assert "its SSH key is unknown, or not the one in" in replies["vm-2"].why_not
    assert "cannot be reached by SSH: it is not the name of a host" in replies["vm-3"].why_not
    assert all(replies[ref].next_move for ref in ("vm-2", "vm-3"))


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (BREAKS_OFF, "the SSH connection broke while /bin/sh ran"),
        (STAYS, "/bin/sh had not ended after 1 s"),
        (NEVER_ENDS, "/bin/sh printed more than 1 MiB, and gpuops stopped reading"),
    ],
)
def test_one_that_does_not_end_well_says_so(
    enter: Callable[[Answer], ShellHost], monkeypatch: pytest.MonkeyPatch, status: int, says: str
) -> None:
    monkeypatch.setattr(guest_ssh, "CHECK_LIMIT_S", 1.0 if status == STAYS else 60.0)
    reply = ask(enter(lambda command: ("x" * 65_536, status)))["vm-1"]
    assert reply.text is None
    assert says in reply.why_not
