"""Scripts for guests of a pool: no text of others becomes a word of a shell, and a revoked lease stays revoked."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from gpuops.errors import Refused, StepFailed
from gpuops.extras.lending import pool_guests as guest_scripts
from gpuops.extras.lending.pool_file import ProgramHook, RemoteProgram, ServerPorts

SERVER, CLIENT = "192.0.2.7", "192.0.2.9"
PROGRAM: Final = RemoteProgram(
    2, "test", "a test", ServerPorts(21000, 8), ProgramHook("true", 'echo "$LEASE $SHARES" > env'),
    ProgramHook("true", "true"), "true"
)  # fmt: skip
HOSTILE = ["", "a b", "a;reboot", "$(reboot)", "../..", "-rf", "A1", "a" * 64, "a\nb", "ä"]


def in_server(lease: str, program: RemoteProgram = PROGRAM) -> str:
    return guest_scripts.hook_command(
        "grant_server", program.grant.server, program.ports.first, program.ports.last, LEASE=lease, GPU=1,
        MEMORY_MIB=600, SECONDS_LEFT=60, SERVER_ADDRESS=SERVER, CLIENT_ADDRESS=CLIENT
    )  # fmt: skip


def in_client(lease: str, program: RemoteProgram = PROGRAM) -> str:
    shares = f"{SERVER}:21000,[2001:db8::7]:21001"
    return guest_scripts.hook_command("grant_client", program.grant.client, LEASE=lease, SHARES=shares)


def out_of_server(lease: str, program: RemoteProgram = PROGRAM) -> str:
    hook = program.revoke.server
    return guest_scripts.hook_command("revoke_server", hook, LEASE=lease, GPU=1, SERVER_ADDRESS=SERVER)


def out_of_client(lease: str, program: RemoteProgram = PROGRAM) -> str:
    return guest_scripts.hook_command("revoke_client", program.revoke.client, LEASE=lease)


def out_of_all(program: RemoteProgram) -> str:
    return guest_scripts.hook_command("revoke_all", program.revoke.server, SERVER_ADDRESS=SERVER)


def health(program: RemoteProgram) -> str:
    return guest_scripts.hook_command("health", program.health, SERVER_ADDRESS=SERVER)


def run(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    """As a guest does."""
    directory = home / "temporary"
    directory.mkdir(exist_ok=True)
    return subprocess.run(
        ["/bin/sh", "-c", script], env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, cwd=directory,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("lease", HOSTILE)
def test_an_id_that_is_none_is_in_no_script(lease: str) -> None:
    for make in (in_server, out_of_server, in_client, out_of_client):
        with pytest.raises(Refused, match="is not the id of a lease"):
            make(lease)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu-01", "192.0.2.7; reboot", "192.0.2.300", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "169.254.1.2"),
        *("fd00::1%\nreboot", "fd00::1%$(reboot)", "127.0.0.1", "::1", "255.255.255.255"),
    ],
)
def test_an_address_by_which_nobody_is_reached_is_refused(text: str) -> None:
    assert guest_scripts.first_address([text]) is None


def test_of_several_addresses_one_is_taken_by_which_others_reach_the_guest() -> None:
    assert guest_scripts.first_address(["fe80::1", "2001:db8::7", "192.0.2.7"]) == "192.0.2.7"
    assert guest_scripts.first_address(["fe80::1", "2001:DB8::7"]) == "2001:db8::7"
    assert guest_scripts.first_address(["fe80::1", "nonsense"]) is guest_scripts.first_address([]) is None


def test_a_lease_that_was_revoked_in_a_guest_is_not_granted_again(tmp_path: Path) -> None:
    """A gpuops that stood still goes on where it was, whatever another machine has done since."""
    grants = (in_server("a1"), in_client("a1"))
    revokes = (out_of_server("a1"), out_of_client("a1"))
    assert [run(script, tmp_path).returncode for script in (*grants, *revokes, *revokes)] == [0] * 6
    before = sorted((tmp_path / ".gpuops-pool").rglob("*"))
    assert [path.name for path in before] == ["ended", "a1", "a1.1", "lock"]
    assert [run(script, tmp_path).returncode for script in grants] == [1, 1]
    assert sorted((tmp_path / ".gpuops-pool").rglob("*")) == before
    os.utime(tmp_path / ".gpuops-pool" / "ended" / "a1", (0, 0))
    run(out_of_client("a2"), tmp_path)
    assert not (tmp_path / ".gpuops-pool" / "ended" / "a1").exists(), "a day later it is deleted"


def test_the_environment_is_that_of_the_last_lease_and_goes_with_it(tmp_path: Path) -> None:
    for lease in ("a1", "b2"):
        run(in_client(lease), tmp_path)
    run(out_of_client("a1"), tmp_path)
    env = tmp_path / ".gpuops-pool" / "env"
    assert env.read_text(encoding="utf-8") == "b2 192.0.2.7:21000,[2001:db8::7]:21001\n"
    run(out_of_client("b2"), tmp_path)
    assert not env.is_symlink()


def test_a_guest_s_output_is_read_to_the_letter() -> None:
    assert guest_scripts.granted_port("noise\nport 21000\nport 1", "gpu-01") == 21000
    for printed in ("port x", "", "port 1; reboot"):
        with pytest.raises(StepFailed):
            guest_scripts.granted_port(printed, "gpu-01")
    printed = "noise\nlease a1 0 10\nlease b2-3 1 0\nlease A 0 5\nlease c 0 -5\nlease d 0 5; reboot\n"
    assert guest_scripts.served_shares(printed) == {("a1", 0): 10, ("b2-3", 1): 0}


def test_every_port_is_taken_once_and_then_none(tmp_path: Path) -> None:
    """Eight, in this program."""
    answers = [run(in_server(f"a{number}"), tmp_path) for number in range(9)]
    ports = [guest_scripts.granted_port(answer.stdout, "gpu-01") for answer in answers[:8]]
    assert ports == list(range(21000, 21008))
    assert (answers[8].returncode, answers[8].stdout) == (1, "every port is taken\n")
    assert not (tmp_path / ".gpuops-pool" / "a8.1").exists()


def test_a_hook_that_fails_fails_the_script(tmp_path: Path) -> None:
    answer = run(
        in_server("a1", program=replace(PROGRAM, grant=ProgramHook("echo no driver; false", "true"))), tmp_path
    )
    assert (answer.returncode, answer.stdout) == (1, "no driver\n")


@pytest.mark.parametrize("hook", ["set -e; false; true", "exit 3", "false"])
def test_a_hook_that_fails_on_its_way_has_failed(tmp_path: Path, hook: str) -> None:
    """`set -e` in a hook is the hook's own, which a condition around it would switch off."""
    program = replace(PROGRAM, grant=ProgramHook(hook, hook), revoke=ProgramHook(hook, hook), health=hook)
    scripts = [
        *(make("a1", program) for make in (in_server, out_of_server, in_client, out_of_client)),
        health(program),
    ]
    assert [run(script, tmp_path).returncode for script in scripts] == [guest_scripts.HOOK_FAILED] * 5


def test_what_fails_before_a_hook_is_no_failure_of_the_hook(tmp_path: Path) -> None:
    (tmp_path / ".gpuops-pool").touch()
    answer = run(health(replace(PROGRAM, health="false")), tmp_path)
    assert answer.returncode not in (0, guest_scripts.HOOK_FAILED)


def test_a_grant_that_was_killed_between_its_link_and_its_rename_is_tried_again(tmp_path: Path) -> None:
    pool = tmp_path / ".gpuops-pool"
    pool.mkdir()
    (pool / "env.new.a1").symlink_to("a1/env")
    assert run(in_client("a1"), tmp_path).returncode == 0
    assert (pool / "env").readlink() == Path("a1/env") and not (pool / "env.new.a1").is_symlink()


def test_every_share_of_a_guest_is_revoked_before_its_server_lends_again(tmp_path: Path) -> None:
    program = replace(PROGRAM, revoke=ProgramHook('echo "$LEASE $GPU $PORT $PWD" >> ../revoked', "true"))
    pool = tmp_path / ".gpuops-pool"
    script = out_of_all(program)
    assert run(script, tmp_path).returncode == 0, "of none"
    for lease in ("a1", "b-2"):
        run(in_server(lease), tmp_path)
    assert run(script, tmp_path).returncode == 0
    assert (pool / "revoked").read_text() == f"a1 1 21000 {pool}/a1.1\nb-2 1 21001 {pool}/b-2.1\n"
    assert sorted(path.name for path in pool.iterdir()) == ["ended", "lock", "revoked"]
    assert run(in_server("a1"), tmp_path).returncode == 1, "and is not granted again"


def test_a_share_whose_revoke_fails_stays_for_the_next_time(tmp_path: Path) -> None:
    run(in_server("a1"), tmp_path)
    program = replace(PROGRAM, revoke=ProgramHook("echo no; exit 4", "true"))
    answer = run(out_of_all(program), tmp_path)
    assert (answer.returncode, answer.stdout) == (guest_scripts.HOOK_FAILED, "no\n")
    assert (tmp_path / ".gpuops-pool" / "a1.1").is_dir()
