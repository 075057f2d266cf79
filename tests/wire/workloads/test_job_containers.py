"""Jobs in real Podman containers, in a simulated guest that runs real programs: from their start to their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import Refused, UsageError
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.jobs import guest_container
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime, Mount
from gpuops.model.guests.guest import ContainerPhase, ContainerState
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.vm import Vm
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands
from tests.podman_guest import IMAGE, PASSWORD, USER, VM, PodmanGuest, hold, needs_podman, podman_guest
from tests.waiting import wait_until
from tests.wire.conftest import target_of

pytestmark = needs_podman
GRACE = timedelta(seconds=1)


@dataclass
class Lab:
    """The guest, and its containers."""

    guest: PodmanGuest
    containers: GuestContainers
    vm: Vm
    connection: Connection

    def start(self, attempt: str, *command: str, resume: bool = False, **options: Any) -> ContainerJob:
        job = job_of(*command, **options)
        self.containers.start(self.vm, job, attempt, resume=resume)
        return job

    def script(self, attempt: str, text: str, **options: Any) -> ContainerJob:
        return self.start(attempt, "sh", "-c", text, **options)

    def ended(self, attempt: str, within_s: float = 90) -> ContainerState:
        wait_until(lambda: self.containers.look(self.vm, attempt).state is not ContainerPhase.RUNNING, within_s)
        return self.containers.look(self.vm, attempt)

    def output(self, attempt: str) -> bytes:
        return self.containers.output(self.vm, attempt, 0, 1 << 30)

    def until_written(self, attempt: str, text: bytes) -> None:
        wait_until(lambda: text in self.output(attempt), every_s=0.1)


def job_of(*command: str, **options: Any) -> ContainerJob:
    return ContainerJob("fit", IMAGE, command, "a40-8q", 4, 8192, timedelta(hours=1), **options)


@pytest.fixture(scope="module")
def module_guest() -> Iterator[PodmanGuest]:
    with podman_guest() as guest:
        yield guest


@pytest.fixture
def lab(module_guest: PodmanGuest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(guest_commands, "POLLS_S", (0.05,))
    login = GuestLogin(USER, Secret(PASSWORD))
    with Connection(replace(target_of(module_guest.server), guest=login)) as connection:
        vm = connection.inventory().find_vm(VM)
        yield Lab(module_guest, GuestContainers(guest_work(connection)), vm, connection)
        module_guest.podman("rm -f -a -t 0")


def test_a_job_runs_with_its_gpu_and_its_exit_code_times_and_output_come_back(lab: Lab) -> None:
    before = datetime.fromtimestamp(int(time.time()), UTC)  # a guest's clock is that of this machine
    assert lab.containers.look(lab.vm, "one").state is ContainerPhase.ABSENT
    lab.script("one", "echo out; echo err >&2; echo gpu $GPU_OF_THESE_TESTS resumed $GPUOPS_JOB_RESUMED; exit 7")
    state = lab.ended("one")
    assert (state.state, state.exit_code) == (ContainerPhase.ENDED, 7)
    assert state.began is not None and state.ended is not None
    assert before <= state.began <= state.ended <= datetime.fromtimestamp(time.time(), UTC)
    log = lab.output("one")  # podman passes two pipes on: what goes to both has no order
    assert sorted(log.splitlines()) == [b"err", b"gpu all resumed", b"out"]
    assert lab.containers.output(lab.vm, "one", 4, 3) == log[4:7] and lab.containers.output(lab.vm, "one", 99, 3) == b""
    assert lab.guest.containers() == [], "--rm"
    directory = lab.guest.home / ".gpuops-jobs"
    assert directory.stat().st_mode & 0o777 == (directory / "one").stat().st_mode & 0o777 == 0o700
    for _ in range(2):
        lab.containers.clear(lab.vm, "one")
        assert [path.name for path in (directory / "one").iterdir()] == ["revoked"]
        assert lab.containers.look(lab.vm, "one") == ContainerState(ContainerPhase.ABSENT)


@pytest.mark.long
def test_what_is_over_and_noted_is_started_by_no_pass_that_has_looked_before(lab: Lab) -> None:
    """Else it would run beside the next attempt, and on where that pass is killed."""
    lab.script("over", "echo first")
    assert lab.ended("over").exit_code == 0
    lab.containers.clear(lab.vm, "over")
    lab.script("over", "sleep 600")
    assert lab.containers.look(lab.vm, "over").state is ContainerPhase.ABSENT
    assert lab.guest.containers() == []


def test_its_container_is_shut_off_as_the_command_line_says(lab: Lab) -> None:
    """`--read-only`, `--network=none`, `--cap-drop=all`, `--security-opt=no-new-privileges`; Linux proc(5), status."""
    look = "ls /sys/class/net; while read -r line; do echo $line; done < /proc/1/status"
    lab.script("off", f"exec 2>&1; touch /x; touch /tmp/x && echo tmp; {look}")
    assert lab.ended("off").exit_code == 0
    lines = lab.output("off").decode().splitlines()
    assert lines[:3] == ["touch: /x: Read-only file system", "tmp", "lo"]
    assert {"CapEff: 0000000000000000", "CapBnd: 0000000000000000", "NoNewPrivs: 1"} <= set(lines)


@pytest.mark.long
def test_started_twice_it_runs_once(lab: Lab) -> None:
    """As after a kill -9 of gpuops between the request and the record."""
    data = lab.guest.root / "data"
    data.mkdir(exist_ok=True)
    job = lab.script("twice", "echo ran >> /data/runs; sleep 1", mounts=(Mount(str(data), "/data", writable=True),))
    lab.containers.start(lab.vm, job, "twice", resume=False)
    assert lab.ended("twice").exit_code == 0
    lab.containers.start(lab.vm, job, "twice", resume=False)
    assert lab.ended("twice").exit_code == 0 and (data / "runs").read_text() == "ran\n"


def test_a_mount_is_read_only_unless_the_job_says_otherwise(lab: Lab) -> None:
    data = lab.guest.root / "data"
    data.mkdir(exist_ok=True)
    (data / "in").write_text("given\n")
    lab.script("mount", "exec 2>&1; cat /data/in; touch /data/x", mounts=(Mount(str(data), "/data"),))
    assert lab.ended("mount").exit_code == 1
    assert lab.output("mount") == b"given\ntouch: /data/x: Read-only file system\n"


@pytest.mark.long
def test_it_is_stopped_after_its_checkpoint_and_goes_on_from_there(lab: Lab) -> None:
    data = lab.guest.root / "state"
    data.mkdir(exist_ok=True)
    script = (
        'trap "echo asked; exit 0" TERM; i=0; [ -z "$GPUOPS_JOB_RESUMED" ] || read -r i < /state/saved; echo from $i; '
        "while [ $i -lt 3 ]; do i=$((i + 1)); echo $i > /state/now; [ $i = 3 ] || sleep 600 & wait; done; echo done"
    )
    options: dict[str, Any] = {
        "mounts": (Mount(str(data), "/state", writable=True),),
        "checkpoint": ("sh", "-c", "cat /state/now > /state/saved"),
        "resumes": 1,
    }
    job = lab.script("night-1", script, **options)
    lab.until_written("night-1", b"from 0")
    wait_until((data / "now").exists)
    saved = lab.containers.checkpoint(lab.vm, job, "night-1", timedelta(seconds=20))
    assert saved and saved.reason == "" and (data / "saved").read_text() == "1\n"
    assert lab.containers.look(lab.vm, "night-1").state is ContainerPhase.RUNNING
    state = lab.containers.stop(lab.vm, "night-1", timedelta(seconds=20))
    assert (state.state, state.exit_code) == (ContainerPhase.ENDED, 0)
    assert lab.output("night-1") == b"from 0\nasked\n"
    assert lab.containers.stop(lab.vm, "night-1", GRACE) == state, "what has ended stays as it is"
    second_checkpoint = lab.containers.checkpoint(lab.vm, job, "night-1", timedelta(seconds=20))
    assert (second_checkpoint.saved, second_checkpoint.reason) == (False, "it does not run")
    (data / "saved").write_text("2\n")
    lab.script("night-2", script, resume=True, **options)
    assert lab.ended("night-2").exit_code == 0
    assert lab.output("night-2") == b"from 2\ndone\n"


@pytest.mark.long
def test_what_does_not_heed_is_ended_after_its_grace(lab: Lab) -> None:
    lab.script("deaf", "trap '' TERM; echo up; sleep 600; sleep 600")
    lab.until_written("deaf", b"up")
    with pytest.raises(Refused, match="still runs, so its files stay"):
        lab.containers.clear(lab.vm, "deaf")
    began = time.monotonic()
    state = lab.containers.stop(lab.vm, "deaf", GRACE)
    assert (state.state, state.exit_code) == (ContainerPhase.ENDED, 137)
    assert 1 <= time.monotonic() - began < 60, "it sleeps for ten minutes"
    assert lab.guest.containers() == []


def test_a_checkpoint_that_fails_or_takes_long_says_so(lab: Lab) -> None:
    failing = lab.script("slow", "echo up; sleep 600", checkpoint=("sh", "-c", "echo no room >&2; exit 3"))
    lab.until_written("slow", b"up")
    checkpoint = lab.containers.checkpoint(lab.vm, failing, "slow", timedelta(seconds=20))
    assert not checkpoint
    assert checkpoint.reason == "its checkpoint command failed: it ended with exit code 3: no room"
    slow = replace(failing, checkpoint=("sleep", "600"))
    checkpoint = lab.containers.checkpoint(lab.vm, slow, "slow", timedelta(seconds=1))
    assert (checkpoint.saved, checkpoint.reason) == (False, "its checkpoint command took longer than 1 s")
    assert not lab.containers.checkpoint(lab.vm, replace(failing, checkpoint=()), "slow", GRACE)
    assert lab.containers.stop(lab.vm, "slow", timedelta(0)).exit_code == 137


@pytest.mark.long
def test_a_long_log_is_cut_with_a_note_and_keeps_both_ends(lab: Lab) -> None:
    lab.script("long", "seq 1 1000000; echo last words; exit 1")
    state = lab.ended("long")
    log = lab.output("long")
    assert state.exit_code == 1 and log.endswith(b"\nlast words\n") and log.startswith(b"1\n2\n3\n")
    whole = b"".join(b"%d\n" % number for number in range(1, 1000001)) + b"last words\n"
    head, note, tail = log.partition(b"\n[gpuops: ")
    count, _, tail = tail.partition(b" bytes were left out here]\n")
    assert note and len(head) == guest_container.HEAD_PARTS * guest_container.PART and whole.startswith(head)
    assert whole.endswith(tail) and guest_container.TAIL <= len(tail) <= 2 * guest_container.TAIL
    assert len(head) + int(count) + len(tail) == len(whole)
    assert b"".join(lab.containers.output(lab.vm, "long", at, 300_001) for at in range(0, len(log), 300_001)) == log
    log_sizes = [path.stat().st_size for path in (lab.guest.home / ".gpuops-jobs/long").iterdir()]
    assert sum(log_sizes) <= guest_container.LOG_LIMIT + 8192


@pytest.mark.long
def test_an_image_that_is_not_there_ends_with_what_podman_says(lab: Lab) -> None:
    job = replace(job_of("true"), image="localhost:1/lab/none:1")
    lab.containers.start(lab.vm, job, "none", resume=False)
    assert lab.ended("none").exit_code == 125, "podman-run(1), Exit Status"
    assert b"localhost:1/lab/none:1" in lab.output("none")


@pytest.mark.long
def test_a_guest_that_is_switched_off_leaves_an_end_that_nobody_saw(lab: Lab) -> None:
    lab.script("cut", "echo up; sleep 600")
    lab.until_written("cut", b"up")
    vm = lab.guest.guest.vm
    lab.guest.guest.wait(vm.PowerOff())
    lab.guest.guest.wait(vm.PowerOn())
    wait_until(lambda: vm.guest.toolsRunningStatus == "guestToolsRunning", every_s=0.1)
    hold(lab.guest)
    state = lab.containers.look(lab.vm, "cut")
    assert (state.state, state.exit_code, state.ended) == (ContainerPhase.ENDED, None, None)
    assert state.began is not None and lab.output("cut") == b"up\n"
    lab.containers.start(lab.vm, job_of("true"), "cut", resume=False)
    assert lab.containers.look(lab.vm, "cut").exit_code is None, "an attempt is run once at most"
    lab.containers.clear(lab.vm, "cut")
    assert lab.guest.containers() == []


@pytest.mark.long
def test_a_container_whose_script_was_killed_runs_on_and_can_be_stopped(lab: Lab) -> None:
    lab.script("lost", "echo up; sleep 600")
    lab.until_written("lost", b"up")
    for pid in lab.guest.guest.marked():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"./run" in words or (words[0].endswith(b"podman") and b"run" in words):
            os.kill(pid, signal.SIGKILL)
    assert lab.containers.look(lab.vm, "lost").state is ContainerPhase.RUNNING
    state = lab.containers.stop(lab.vm, "lost", timedelta(0))
    assert (state.state, state.exit_code) == (ContainerPhase.ENDED, None)
    lab.containers.clear(lab.vm, "lost")
    assert lab.guest.containers() == []


def test_what_a_guest_has_is_told_and_the_wish_counts_first(lab: Lab) -> None:
    assert lab.containers.runtime(lab.vm) is ContainerRuntime.PODMAN
    tool = lab.guest.home / ".local/bin/apptainer"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    fresh = GuestContainers(guest_work(lab.connection))
    assert fresh.runtime(lab.vm, ContainerRuntime.APPTAINER) is ContainerRuntime.APPTAINER
    assert fresh.runtime(lab.vm) is ContainerRuntime.PODMAN
    tool.unlink()


def test_no_password_of_gpuops_reaches_the_guest(lab: Lab) -> None:
    """Neither a file of it nor the environment or command line of a process."""
    lab.script("quiet", "echo up; env; sleep 600")
    lab.until_written("quiet", b"up")
    lab.containers.checkpoint(lab.vm, job_of("x", checkpoint=("true",)), "quiet", timedelta(seconds=20))
    secrets = [lab.guest.server.password.encode(), PASSWORD.encode()]
    process_texts = [
        Path(f"/proc/{pid}/{name}").read_bytes() for pid in lab.guest.guest.marked() for name in ("environ", "cmdline")
    ]
    file_contents = [
        path.read_bytes() for path in lab.guest.home.rglob("*") if path.is_file() and "storage" not in path.parts
    ]
    assert len(process_texts) > 4 and len(file_contents) > 6 and b"GPU_OF_THESE_TESTS" in lab.output("quiet")
    assert not [
        text
        for text in (*process_texts, *file_contents, lab.output("quiet"))
        if any(secret in text for secret in secrets)
    ]
    lab.containers.stop(lab.vm, "quiet", timedelta(0))


def test_what_cannot_be_sent_is_refused_and_nothing_is_started(lab: Lab) -> None:
    with pytest.raises(Refused, match="60000 can be sent"):
        lab.start("large", "echo", *["x" * 4096] * 20)
    with pytest.raises(Refused, match="control character"):
        lab.start("escape", "echo", "\x1b[2J")
    with pytest.raises(UsageError, match="is not the name of an attempt"):
        lab.start("../escape", "true")
    assert lab.guest.containers() == [] and lab.containers.look(lab.vm, "large").state is ContainerPhase.ABSENT
