"""A plain pyVmomi client as its community samples are: it finds objects in container views, sleeps and polls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from gpuops.sim.server import start
from tests.waiting import wait_until


class Client:
    """A login, and what every sample begins with."""

    def __init__(self, si: Any) -> None:
        self.si = si
        self.content = si.RetrieveContent()

    def all(self, kind: Any) -> list[Any]:
        """Every object of a kind."""
        view = self.content.viewManager.CreateContainerView(self.content.rootFolder, [kind], True)
        try:
            return list(view.view)
        finally:
            view.Destroy()

    def named(self, kind: Any, name: str) -> Any:
        """The first object of that name. Raises StopIteration when there is none."""
        return next(each for each in self.all(kind) if each.name == name)

    def vm(self, name: str) -> Any:
        return self.named(vim.VirtualMachine, name)

    def result(self, task: Any) -> Any:
        """The result of a task that has ended. Raises the fault that it ended in."""
        wait_until(lambda: task.info.state in (vim.TaskInfo.State.success, vim.TaskInfo.State.error))
        if task.info.state == vim.TaskInfo.State.error:
            raise task.info.error
        return task.info.result

    def change(self, vm: Any, *devices: Any, **fields: Any) -> None:
        """Reconfigure a VM."""
        self.result(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=list(devices), **fields)))


@contextmanager
def client() -> Iterator[Client]:
    """A client of a simulated vCenter of its own, on the clock that it has by default."""
    with start("lab", tls=False) as server:
        si = SmartConnect(**server.login)
        yield Client(si)
        Disconnect(si)
    assert server.world.bugs == []
