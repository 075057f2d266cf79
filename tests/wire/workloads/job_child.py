"""A process that does one thing with a job in a guest, and is killed (SIGKILL) before or after one of its calls.

python -m tests.wire.workloads.job_child    (what to do as JSON on stdin; exit code 0 = it came to its end)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import ContainerJob, Mount
from gpuops.model.vcenter.target import GuestLogin, Secret, Target
from gpuops.model.vcenter.vm import Vm
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands

VERBS: Final = ("start", "checkpoint", "stop", "collect", "revoke")


def job_of(job_fields: dict[str, Any]) -> ContainerJob:
    """The job that the JSON tells."""
    mounts = (Mount(job_fields["data"], "/data", writable=True),)
    checkpoint = ("sh", "-c", "echo saved >> /data/saved")
    command = ("sh", "-c", job_fields["script"])
    return ContainerJob(
        "fit", job_fields["image"], command, "a40-8q", 4, 8192, timedelta(hours=1), mounts=mounts, checkpoint=checkpoint
    )


def act(containers: GuestContainers, vm: Vm, request: dict[str, Any]) -> None:
    """One verb."""
    attempt = request["attempt"]
    match request["verb"]:
        case "start":
            containers.start(vm, job_of(request), attempt, resume=False)
        case "checkpoint":
            assert containers.checkpoint(vm, job_of(request), attempt, timedelta(seconds=20))
        case "revoke":
            containers.revoke(vm, attempt)
        case "stop":
            containers.stop(vm, attempt, timedelta(0))
        case "collect":
            assert containers.look(vm, attempt).exit_code == 7
            assert containers.output(vm, attempt, 0, 1 << 20) == b"it ran\n"
            containers.clear(vm, attempt)
        case _:
            pass


class _Killing:
    """Counts what is asked of vCenter, reads and changes alike, and ends this process at one of them.

    A wait that asks the same several times is one.
    """

    def __init__(self, at: int, *, after: bool) -> None:
        self._at, self._after, self.count = at, after, 0
        self._last = ""

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_kill(*words: Any, **named: Any) -> Any:
            operation = _name(words[0])
            is_repeated = operation == self._last == "ListProcessesInGuest"
            self.count, self._last = self.count + (not is_repeated), operation
            mine = self.count == self._at and not is_repeated
            if mine and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            reply = call(*words, **named)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return reply

        return call_and_kill


def _name(method: Any) -> str:
    """Return the name of a method of a managed object, for which pyVmomi makes a lambda; "" for anything else."""
    cells = [cell.cell_contents for cell in method.__closure__ or ()]
    return next((cell.info.wsdlName for cell in cells if hasattr(cell, "info")), "")


def main() -> None:
    """Prints how many calls it made, where it comes to that."""
    request = json.load(sys.stdin)
    guest_commands.POLLS_S = (0.1, 0.2)  # type: ignore[misc]
    target = Target(
        "127.0.0.1",
        request["username"],
        Secret(request["password"]),
        port=request["port"],
        ca_files=(request["ca_file"],),
    )
    login = GuestLogin(request["guest_username"], Secret(request["guest_password"]))
    with Connection(replace(target, guest=login)) as connection:
        vm = Vm(request["vm"], "vm-01")
        killing = _Killing(request["at"], after=request["after"])
        connection.change = killing.around(connection.change)  # type: ignore[method-assign]
        connection.read = killing.around(connection.read)  # type: ignore[method-assign]
        act(GuestContainers(guest_work(connection)), vm, request)
    print(killing.count)


if __name__ == "__main__":
    main()
