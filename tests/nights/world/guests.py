"""Guests: the programs that a direct vCenter runs in them, as guest operations do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyVmomi import vim

from gpuops.errors import GpuopsError, OutcomeUnknown, StepFailed
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.steps import RunInGuest
from gpuops.sim.core.call import Call
from gpuops.sim.services.guest_managers import GuestProcessManager
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World

USER: Final = "keeper"
PASSWORD: Final = "its own"
LOGIN: Final = GuestLogin(USER, Secret(PASSWORD))
PREFIX: Final = "guest-process:"

Asking = Callable[[str, str, Callable[[Call], Any], str], Any]
"""One call to vCenter: method, object, what it does, op id."""


class Guests:
    """The programs of one connection."""

    def __init__(self, world: World, ask: Asking, read: Callable[[Callable[[], Any]], Any]) -> None:
        self._world = world
        self._ask = ask
        self._read = read
        [manager] = world.by_type("GuestProcessManager")
        assert isinstance(manager, GuestProcessManager)
        self._manager = manager

    def start(self, step: RunInGuest, op_id: str) -> TaskRef:
        """The started program. Raises the fault of the API."""
        auth = vim.vm.guest.NamePasswordAuthentication(username=USER, password=PASSWORD)
        spec = vim.vm.guest.ProcessManager.ProgramSpec(programPath=step.program, arguments=step.arguments)

        def start(call: Call) -> int:
            return self._manager.StartProgramInGuest(call, vim.VirtualMachine(step.vm), auth, spec)

        pid = self._ask("StartProgramInGuest", self._manager.moid, start, op_id)
        return TaskRef(f"{PREFIX}{step.vm}:{pid}")

    def ended(self, ref: str) -> bool:
        """Whether it runs no more, or will never be known to."""
        vm, process = self._find_process(ref)
        if vm is None or process is None or vm.state.power is not Power.ON or vm.state.boot_time != process.boot_time:
            return True
        return process.ends_at is not None and process.ends_at <= self._world.clock.now()

    def end(self, ref: str) -> TaskEnd:
        """How it ended."""
        task = TaskRef(ref)
        try:
            vm, process = self._read(lambda: self._find_process(ref))
        except GpuopsError as error:
            return TaskEnd(task, error)
        now = self._world.clock.now()
        if vm is None or process is None or vm.state.boot_time != process.boot_time:
            return TaskEnd(task, OutcomeUnknown(f"{ref}: vCenter does not list its program any more"))
        if process.ends_at is None or process.ends_at > now:
            return TaskEnd(task, StepFailed(f"{ref}: its guest does not run any more"))
        if process.exit_code:
            return TaskEnd(task, StepFailed(f"its program ended with exit code {process.exit_code}"))
        return TaskEnd(task, None, (process.ends_at - process.started_at).total_seconds())

    def _find_process(self, ref: str) -> tuple[Any, Any]:
        moid, _, pid = ref.removeprefix(PREFIX).rpartition(":")
        process = next(
            (process for process in self._manager.processes if (process.vm, process.pid) == (moid, int(pid))), None
        )
        return self._world.find(moid), process
