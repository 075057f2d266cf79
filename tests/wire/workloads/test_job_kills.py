"""gpuops is killed (SIGKILL) at each call of starting, saving, stopping and collecting a job, then does it again.

The container has run once then, its end is known, and nothing is left in the guest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.model.guests.guest import ContainerPhase
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.vm import Vm
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands
from tests.podman_guest import IMAGE, PASSWORD, USER, VM, PodmanGuest, needs_podman, podman_guest
from tests.waiting import wait_until
from tests.wire.conftest import target_of
from tests.wire.workloads.job_child import VERBS, act, job_of

pytestmark = needs_podman
KILLED: Final = -9
CALLS: Final = {"start": 14, "checkpoint": 14, "stop": 8, "collect": 21, "revoke": 8}
"""How many calls each makes."""
POINTS: Final = [
    (verb, at, after)
    for verb, calls in CALLS.items()
    if verb != "revoke"
    for at in range(1, calls + 1)
    for after in (False, True)
]


@dataclass
class Lab:
    """The guest, and the requests to the process."""

    guest: PodmanGuest
    containers: GuestContainers
    vm: Vm
    data: Path

    def request_for(self, verb: str, attempt: str, at: int = 0, *, after: bool = False) -> dict[str, Any]:
        server = self.guest.server
        script = "echo run >> /data/runs; echo it ran; "
        end = "exit 7" if verb == "collect" else "exec sleep 600"
        where = {"port": server.port, "username": server.username, "password": server.password, "vm": self.vm.ref}
        login = {"guest_username": USER, "guest_password": PASSWORD, "ca_file": str(server.ca_file)}
        job = {"image": IMAGE, "data": str(self.data), "script": script + end}
        return {"verb": verb, "attempt": attempt, "at": at, "after": after, **where, **login, **job}

    def child(self, request: dict[str, Any]) -> tuple[int, str]:
        completed = subprocess.run(
            [sys.executable, "-m", "tests.wire.workloads.job_child"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert completed.returncode in (0, KILLED), completed.stderr
        return completed.returncode, completed.stdout

    def until(self, attempt: str, phase: ContainerPhase) -> None:
        wait_until(lambda: self.containers.look(self.vm, attempt).state is phase)

    def until_written(self, name: str) -> None:
        wait_until(lambda: self.lines(name))

    def until_alone(self, before: set[int]) -> None:
        """Until what a killed process has asked the guest for has come to its end there."""
        wait_until(lambda: not set(self.guest.guest.marked()) - before)

    def left(self, attempt: str) -> list[str]:
        """What is left of its directory in the guest."""
        return [path.name for path in (self.guest.home / ".gpuops-jobs" / attempt).iterdir()]

    def lines(self, name: str) -> list[str]:
        file = self.data / name
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="module")
def module_guest() -> Iterator[PodmanGuest]:
    with podman_guest() as guest:
        yield guest


@pytest.fixture
def lab(module_guest: PodmanGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(guest_commands, "POLLS_S", (0.05,))
    with Connection(replace(target_of(module_guest.server), guest=GuestLogin(USER, Secret(PASSWORD)))) as connection:
        vm = connection.inventory().find_vm(VM)
        yield Lab(module_guest, GuestContainers(guest_work(connection)), vm, tmp_path)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("verb", "at", "after"), POINTS)
def test_killed_at_a_call_and_done_again(lab: Lab, verb: str, at: int, after: bool) -> None:
    attempt = f"{verb}-{at}-{'after' if after else 'before'}"
    request = lab.request_for(verb, attempt, at, after=after)
    if verb != "start":
        lab.containers.start(lab.vm, job_of(request), attempt, resume=False)
        lab.until(attempt, ContainerPhase.ENDED if verb == "collect" else ContainerPhase.RUNNING)
        lab.until_written("runs")
    before = set(lab.guest.guest.marked())
    assert lab.child(request)[0] == KILLED
    if verb == "collect":
        lab.until_alone(before)  # what it had asked the guest to remove is gone by then
    if verb != "collect" or lab.containers.look(lab.vm, attempt).state is not ContainerPhase.ABSENT:
        act(lab.containers, lab.vm, request)
    lab.until_written("runs")
    if verb == "checkpoint":
        assert set(lab.lines("saved")) == {"saved"}
    if verb != "collect":
        state = lab.containers.stop(lab.vm, attempt, timedelta(0))
        assert (state.state, state.exit_code) == (ContainerPhase.ENDED, 137)
        assert lab.containers.output(lab.vm, attempt, 0, 99) == b"it ran\n"
        lab.containers.clear(lab.vm, attempt)
    assert lab.lines("runs") == ["run"], "an attempt runs once"
    assert lab.guest.containers() == [] and lab.left(attempt) == ["revoked"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, CALLS["revoke"] + 1))
def test_what_is_revoked_is_started_by_nobody(lab: Lab, at: int, after: bool) -> None:
    """The pass that was about to start it is late, and would be killed before it notes that: nothing may run on."""
    request = lab.request_for("revoke", f"revoke-{at}-{after}".lower(), at, after=after)
    assert lab.child(request)[0] == KILLED
    assert lab.containers.revoke(lab.vm, request["attempt"]).state is ContainerPhase.ABSENT
    lab.containers.start(lab.vm, job_of(request), request["attempt"], resume=False)
    lab.containers.clear(lab.vm, request["attempt"])
    lab.containers.start(lab.vm, job_of(request), request["attempt"], resume=False)
    assert lab.containers.look(lab.vm, request["attempt"]).state is ContainerPhase.ABSENT
    assert lab.lines("runs") == [] and lab.guest.containers() == []
    shutil.rmtree(lab.guest.home / ".gpuops-jobs")


def test_what_has_begun_cannot_be_revoked(lab: Lab) -> None:
    request = lab.request_for("start", "begun")
    lab.containers.start(lab.vm, job_of(request), "begun", resume=False)
    assert lab.containers.revoke(lab.vm, "begun").state is ContainerPhase.RUNNING
    lab.containers.stop(lab.vm, "begun", timedelta(0))
    assert lab.containers.revoke(lab.vm, "begun").state is ContainerPhase.ENDED
    lab.containers.clear(lab.vm, "begun")
    assert lab.left("begun") == ["revoked"]


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_each_call_is_tried(lab: Lab, verb: str) -> None:
    request = lab.request_for(verb, f"whole-{verb}")
    if verb not in ("start", "revoke"):
        lab.containers.start(lab.vm, job_of(request), request["attempt"], resume=False)
        lab.until(request["attempt"], ContainerPhase.ENDED if verb == "collect" else ContainerPhase.RUNNING)
    code, printed = lab.child(request)
    assert (code, int(printed)) == (0, CALLS[verb])
    lab.containers.stop(lab.vm, request["attempt"], timedelta(0))
    lab.containers.clear(lab.vm, request["attempt"])
    if verb == "revoke":
        shutil.rmtree(lab.guest.home / ".gpuops-jobs")
