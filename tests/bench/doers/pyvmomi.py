"""Power many VMs off at once with pyvmomi, and wait for each task as its own helper does: a filter per task.

python -m tests.bench.doers.pyvmomi QUESTION-FILE COUNT
"""

from __future__ import annotations

import sys
from typing import Any

from pyVim.task import WaitForTask
from pyVmomi import vim

from tests.bench.readers.account import Account
from tests.bench.readers.pyvmomi import connect
from tests.bench.readers.question import asked


def main(count: int) -> None:
    """Count the requests between the first power-off and the last end."""
    account = Account()
    service = connect(asked())
    content = service.RetrieveContent()
    view = content.viewManager.CreateContainerView(content.rootFolder, [vim.VirtualMachine], True)
    every = iter(view.view)
    running: list[Any] = []
    while len(running) < count:
        machine = next(every)
        if machine.runtime.powerState == "poweredOn":
            running.append(machine)
    account.begin()
    tasks = [machine.PowerOffVM_Task() for machine in running]
    account.objects = sum(WaitForTask(task, si=service) == "success" for task in tasks)
    account.print()


if __name__ == "__main__":
    main(int(sys.argv[2]))
