"""Replay the nights of a made-up week from a store of measurements, as `gpuops idle --replay` does.

python -m tests.bench.doers.replay STATE-DIRECTORY DESKTOPS
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuops.extras.observe.replaying import replay
from gpuops.model.nights.rotation import IdleRule
from gpuops.model.vcenter.inventory import Inventory
from tests.bench.nights.replay import OTHERS
from tests.bench.readers.account import Account
from tests.made_weeks import MONDAY, SUNDAY, VCENTER, made_vm, policy_of


def main(folder: Path, desktops: int) -> None:
    """Count the CPU from the opening of the store to the last night."""
    vms = {vm.ref: vm for vm in map(made_vm, range(desktops))}
    inventory = Inventory(VCENTER, "8.0.3.0", SUNDAY, vms=vms)
    account = Account()
    account.begin()
    found = replay(folder, "", inventory, policy_of(IdleRule(500, 900, OTHERS)), MONDAY)
    account.objects = sum(len(night.desktops) for pool in found.pools for night in pool.nights)
    account.print()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
