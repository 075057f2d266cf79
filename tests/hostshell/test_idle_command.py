"""The operator's own command: what it tells, what it fails to tell, and what it is not given."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuops.hostshell.idle_command import IdleCommand
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 20, tzinfo=UTC)
VMS = (
    Vm("vm-1", "vdi-01", instance_uuid="u-1"),
    Vm("vm-2", "vdi-02", instance_uuid="u-2"),
    Vm("vm-3", "twin", instance_uuid="u-3"),
    Vm("vm-4", "twin", instance_uuid="u-4"),
)


@pytest.fixture
def messages() -> list[str]:
    return []


def command(tmp_path: Path, script: str, messages: list[str], **options: Any) -> IdleCommand:
    path = tmp_path / "who-works"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    environ = {"PATH": "/usr/bin:/bin", "GPUOPS_PASSWORD": "hunter2", "CREDENTIALS_DIRECTORY": "/run/x"}
    return IdleCommand([str(path), "--all", "; exit 9"], environ, messages.append, **options)


def sessions_of(answer: IdleCommand) -> dict[str, SessionCount]:
    sessions = answer.sessions(VMS, Inventory("vc", "8.0.3.0", NOW))
    assert set(sessions) == {vm.ref for vm in VMS}, "each VM has an answer"
    return dict(sessions)


def test_counts_and_ages_are_kept_and_nothing_else(tmp_path: Path, messages: list[str]) -> None:
    lines = [
        {"vm": "vdi-01", "sessions": 0, "user": "alice"},
        {"uuid": "u-2", "sessions": 2, "age_s": 30, "oldest_s": 7200, "youngest_s": 60},
        {"uuid": "u-2", "sessions": 0},
        {"vm": "twin", "sessions": 0},
        {"uuid": "u-3", "sessions": 1, "disconnected_s": 7200},
        {"uuid": "u-4", "busy": True, "sessions": 1, "disconnected_s": 7200, "who": "alice"},
        {"vm": "of-nobody", "busy": False},
    ]
    printed = "\n".join(json.dumps(line) for line in lines)
    sessions = sessions_of(command(tmp_path, f"cat <<'END'\n{printed}\nEND", messages))
    assert sessions == {
        "vm-1": SessionCount(0, False, NOW),
        "vm-2": SessionCount(2, True, NOW, 30, 7200, 60),
        "vm-3": SessionCount(1, True, NOW, disconnected_s=7200),
        "vm-4": SessionCount(1, True, NOW),
    }
    assert "alice" not in repr(sessions)
    assert messages == []


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '["vdi-01"]',
        '{"vm": "vdi-01"}',
        '{"vm": "vdi-01", "sessions": -1}',
        '{"vm": "vdi-01", "sessions": true}',
        '{"vm": "vdi-01", "sessions": "0"}',
        '{"vm": "vdi-01", "busy": 0}',
        '{"vm": "vdi-01", "sessions": 0, "age_s": -5}',
        '{"vm": "vdi-01", "sessions": 1, "disconnected_s": "7200"}',
        '{"vm": ["vdi-01"], "sessions": 0}',
        '{"sessions": 0}',
    ],
)
def test_a_line_that_is_no_answer_tells_nothing(tmp_path: Path, messages: list[str], line: str) -> None:
    answer = command(tmp_path, f"""echo '{line}'; echo '{{"vm": "vdi-02", "busy": false}}'""", messages)
    for _ in range(2):
        sessions = sessions_of(answer)
    assert (sessions["vm-1"].used, sessions["vm-2"].used) == (None, False)
    assert messages == ["idle_command: the command printed lines that gpuops cannot read (gpuops help idle)"], "once"


IDLE = """echo '{"vm": "vdi-01", "sessions": 0}'"""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"{IDLE}; echo alice >&2; exit 3", "the command ended with exit code 3"),
        (f"{IDLE}; kill -9 $$", "the command ended with exit code -9"),
        (f"{IDLE}; sleep 20", "the command took longer than 0.5 s"),
        (f"{IDLE}; exec >&-; sleep 20", "the command took longer than 0.5 s"),
        (f"{IDLE}; sleep 20 & exit 0", "the command took longer than 0.5 s"),
        ("exec yes", "the command printed more than 1 MiB"),
    ],
)
def test_a_command_that_fails_tells_of_no_vm(
    tmp_path: Path, messages: list[str], script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops.hostshell.idle_command.MOST_BYTES", 1024 * 1024)
    sessions = sessions_of(command(tmp_path, script, messages, timeout_s=0.5))
    assert {(session.used, session.because) for session in sessions.values()} == {(None, why)}
    assert messages == [f"idle_command: {why} (gpuops help idle)"]


def test_one_that_is_not_there_is_said(messages: list[str]) -> None:
    sessions = sessions_of(IdleCommand(["/nowhere/who-works"], {}, messages.append))
    assert {session.used for session in sessions.values()} == {None}
    assert messages == [f"idle_command: the command cannot be started: {os.strerror(errno.ENOENT)} (gpuops help idle)"]


def test_it_gets_the_vms_its_arguments_and_no_secret(tmp_path: Path, messages: list[str]) -> None:
    """Run as it stands: a blank or a semicolon in an argument is no shell's."""
    sessions_of(
        command(tmp_path, f'cat > {tmp_path}/in; env > {tmp_path}/env; printf "%s\\n" "$@" > {tmp_path}/args', messages)
    )
    lines_sent = [json.loads(line) for line in (tmp_path / "in").read_text().splitlines()]
    assert lines_sent == [{"vm": vm.name, "uuid": vm.instance_uuid} for vm in VMS]
    assert (tmp_path / "args").read_text() == "--all\n; exit 9\n"
    environment = (tmp_path / "env").read_text()
    assert "PATH=/usr/bin:/bin" in environment
    assert "GPUOPS" not in environment and "hunter2" not in environment and "CREDENTIALS" not in environment
