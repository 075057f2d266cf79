"""Scripts that run in guests of pools and clusters: no text of others becomes a word of a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from gpuops.errors import Refused, StepFailed
from gpuops.extras.clusters.cluster_guests import step_command
from gpuops.extras.clusters.launch import Launch
from gpuops.extras.clusters.run_request import Launcher
from gpuops.extras.jobs import guest_container as job
from gpuops.extras.lending import pool_guests as guest_scripts
from gpuops.extras.lending.pool_file import ProgramHook, RemoteProgram, ServerPorts
from gpuops.guest_scripts import script_commands
from gpuops.guest_scripts.script_commands import one_line_command, powershell_command, script_text, shell_command
from gpuops.model.workloads.cluster import Member
from tests.guest_scripts.test_job import HOSTILE as HOSTILE_TEXT
from tests.waiting import wait_until

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


MEMBER = Member("vm-1", "train-00", "esx-01", 1, "10.1.2.11", None)
LAUNCH = Launch("train", "r1", Launcher.MPIRUN, (MEMBER,), 1, (1,), ("true",), {})
MV = """#!/bin/sh
: > "$HOME/moving"
while [ -n "$FIRST" ] && [ ! -e "$HOME/opened" ]; do sleep 0.1; done
exec /bin/mv "$@"
"""
GREP = """#!/bin/sh
[ "$FIRST$1" = -vF ] && { : > "$HOME/opened"; sleep 1; }
exec /bin/grep "$@"
"""


def test_guests_that_share_a_home_directory_keep_the_keys_that_were_there(tmp_path: Path) -> None:
    """One guest puts its file in place when another has just opened its own, and has not read the keys yet."""
    keys = tmp_path / ".ssh/authorized_keys"
    keys.parent.mkdir()
    mine = "ssh-ed25519 AAAA mine\n"
    keys.write_text(f"{mine}restrict ssh-ed25519 BBBB gpuops-cluster-run:train:r1\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("mv", MV), ("grep", GREP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o700)
    surroundings = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    first = subprocess.Popen(["sh", "-c", step_command("clean", LAUNCH)], env={**surroundings, "FIRST": "1"})
    wait_until((tmp_path / "moving").exists)
    second = subprocess.run(["sh", "-c", step_command("clean", LAUNCH)], env=surroundings, timeout=30, check=False)
    assert (first.wait(timeout=30), second.returncode, keys.read_text()) == (0, 0, mine)
    assert [path.name for path in keys.parent.iterdir()] == ["authorized_keys"]


SHELLS = [words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(words[0])]
PRINT = 'printf "%s\\0" "$HOSTILE" "$@"\n# a \\n, a \\\\ and an "end"\n'


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_parameters_reach_a_script_as_they_are(
    shell: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_commands, "script_text", lambda name: PRINT if name == "printing.sh" else "")
    monkeypatch.setattr(script_commands, "SHELL", shell[0] if len(shell) == 1 else "/bin/sh")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for text in HOSTILE_TEXT:
        command = shell_command("printing", *HOSTILE_TEXT, variables={"HOSTILE": text})
        printed = subprocess.run([*shell, "-c", command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        assert printed.stdout.decode().split("\0")[:-1] == [text, *HOSTILE_TEXT]
    line = one_line_command("printing", [text for text in HOSTILE_TEXT if "\n" not in text])
    assert "\n" not in line
    printed = subprocess.run([*shell, "-c", line], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert printed.stdout.decode().split("\0")[1:-1] == [text for text in HOSTILE_TEXT if "\n" not in text]
    assert list(tmp_path.iterdir()) == []


def test_texts_of_powershell_are_literals() -> None:
    script = b64decode(powershell_command("check_guest", ["a", "'; reboot; '"]).rpartition(" ")[2]).decode("utf-16-le")
    assert script.endswith("\n} 'a','''; reboot; '''")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("path", sorted(Path(script_commands.__file__).parent.glob("*.sh")), ids=lambda path: path.name)
def test_every_shell_can_read_each_script(shell: list[str], path: Path) -> None:
    assert subprocess.run([*shell, "-n", path], capture_output=True, check=False).stderr == b""


def test_the_sizes_of_a_job_s_output_are_those_of_its_script() -> None:
    sizes = dict(re.findall(r"^(part_bytes|head_parts|tail_bytes)=(\d+)$", script_text("job_container.sh"), re.M))
    assert sizes == {
        "part_bytes": str(job.PART),
        "head_parts": str(job.HEAD_PARTS),
        "tail_bytes": str(job.TAIL),
    }
