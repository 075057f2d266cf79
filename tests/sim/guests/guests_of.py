"""A guest that runs real processes, as a client of guest operations sees it."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from typing import Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.guests.marked_processes import pids_with_mark
from gpuops.sim.server import SimServer
from tests.waiting import wait_until

ENDS_S: Final = 90.0


@dataclass(frozen=True)
class Guest:
    """Of the VM of that name."""

    server: SimServer
    service: Any
    name: str
    auth: Any

    def of(self, name: str) -> Guest:
        return replace(self, name=name)

    @property
    def vm(self) -> Any:
        [moid] = [vm.moid for vm in self.server.world.by_type("VirtualMachine") if vm.name == self.name]
        return vim.VirtualMachine(moid, self.service._stub)

    @property
    def files(self) -> Any:
        return self.service.content.guestOperationsManager.fileManager

    @property
    def processes(self) -> Any:
        return self.service.content.guestOperationsManager.processManager

    @property
    def mark(self) -> str:
        """With which the marks of its processes begin."""
        return self.server.world.guests.guest(self.vm._moId).mark

    def marked(self) -> list[int]:
        return list(pids_with_mark(self.mark))

    def temporary_directory(self) -> str:
        directory: str = self.files.CreateTemporaryDirectoryInGuest(self.vm, self.auth, "of-", "-tests")
        return directory

    def run(
        self, arguments: str, *, program: str = "/bin/sh", directory: str | None = None, env: list[str] | None = None
    ) -> int:
        """The process of a program; of `/usr/bin/env python3` the second word goes before the arguments."""
        path, _, first = program.partition(" ")
        spec = vim.vm.guest.ProcessManager.ProgramSpec(
            programPath=path,
            arguments=f"{first} {arguments}".strip(),
            workingDirectory=directory,
            envVariables=env or [],
        )
        return int(self.processes.StartProgramInGuest(self.vm, self.auth, spec))

    def ended(self, pid: int, *, wait: bool = True) -> Any:
        """Return the information about a process, once it has ended."""

        def look() -> Any:
            [process] = self.processes.ListProcessesInGuest(self.vm, self.auth, [pid])
            return process if process.endTime is not None or not wait else None

        return wait_until(look, ENDS_S)

    def read(self, path: str) -> bytes:
        transfer = self.files.InitiateFileTransferFromGuest(self.vm, self.auth, path)
        with self._open("GET", transfer.url) as reply:
            content: bytes = reply.read()
        assert len(content) == transfer.size
        return content

    def write(self, path: str, content: bytes, permissions: int | None = None) -> None:
        attributes = vim.vm.guest.FileManager.PosixFileAttributes(permissions=permissions)
        url = self.files.InitiateFileTransferToGuest(self.vm, self.auth, path, attributes, len(content), False)
        with self._open("PUT", url, content) as reply:
            assert reply.status == 200

    def status(self, verb: str, url: str, content: bytes | None = None) -> int:
        try:
            with self._open(verb, url, content) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def wait(self, task: Any) -> Any:
        """The result of a task. Raises its fault."""
        wait_until(lambda: task.info.state in ("success", "error"), every_s=0.01)
        if task.info.error is not None:
            raise task.info.error
        return task.info.result

    def wait_for_updates(self, seconds: float) -> None:
        """A wait for updates in which nothing happens."""
        options = vmodl.query.PropertyCollector.WaitOptions(maxWaitSeconds=1)
        collector = self.service.content.propertyCollector
        collector.WaitForUpdatesEx("", options)
        time.sleep(seconds)

    def _open(self, verb: str, url: str, content: bytes | None = None) -> Any:
        whole = url.replace("//*:", f"//{self.server.host}:")
        context = ssl.create_default_context(cafile=self.server.ca_file)
        return urllib.request.urlopen(urllib.request.Request(whole, content, method=verb), context=context)
