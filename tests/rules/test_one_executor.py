"""One way to change vCenter: the executors of steps. Only the lease is written apart: it must be held before a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SENDS: Final = re.compile(
    r"\b(?:_?vcenter|_?hosts|roles_port\([\w.]*\))\.(?:submit|configure|define_attribute|write_role)\("
)
BELOW: Final = ("vsphere", "sim")
SENDERS: Final = {
    "execute/steps/vm_executor.py",
    "execute/steps/host_executor.py",
    "execute/steps/vcenter_settings.py",
    "execute/change/host_tasks.py",
    "execute/site/host_shell.py",  # passes on what an executor sends
    "execute/lease/lock_vm.py",
}


def test_only_executors_of_steps_and_the_lease_send_changes_to_vcenter() -> None:
    package = ROOT / "gpuops"
    senders = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in BELOW and SENDS.search(path.read_text(encoding="utf-8"))
    }
    assert senders == SENDERS
