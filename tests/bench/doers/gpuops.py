"""Power many VMs off at once with gpuops' own connection, and wait for all tasks by its one filter.

python -m tests.bench.doers.gpuops QUESTION-FILE COUNT
"""

from __future__ import annotations

import sys

from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm
from gpuops.vsphere.connection import Connection
from tests.bench.readers.account import Account
from tests.bench.readers.gpuops import target_of
from tests.bench.readers.question import asked

TIMEOUT_S = 300


def main(count: int) -> None:
    """Count the requests between the first power-off and the last end."""
    account = Account()
    with Connection(target_of(asked())) as connection:
        snapshot = connection.inventory()
        running = [vm.ref for vm in snapshot.vms.values() if vm.power is PowerState.ON][:count]
        account.begin()
        tasks = [connection.submit(PowerOffVm(ref), snapshot, f"bench-{ref}") for ref in running]
        ends = list(connection.wait([task for task in tasks if task is not None], TIMEOUT_S))
        account.objects = sum(end.error is None for end in ends)
        account.print()


if __name__ == "__main__":
    main(int(sys.argv[2]))
