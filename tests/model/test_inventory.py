"""A snapshot that was changed keeps the one that was read: vCenter's counts are true of that one alone."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuops.model.vcenter.inventory import Inventory
from tests.plan.snapshots import FIRST, gpu, host, inventory, vm

ESX = host("esx-1", gpu(FIRST, "a40", 0))
DESK = vm(1, "desk-01", "1", "vgpu nvidia_a40-8q")
READ = inventory([ESX], [DESK])

CHANGES: dict[str, Callable[[Inventory], Inventory]] = {
    "replace": lambda snapshot: replace(snapshot, vms={}),
    "with_vm": lambda snapshot: snapshot.with_vm(replace(DESK, name="desk-02")),
    "with_vms": lambda snapshot: snapshot.with_vms([replace(DESK, name="desk-02")]),
    "with_hosts": lambda snapshot: snapshot.with_hosts([replace(ESX, connected=False)]),
    "with_machines_not_found": lambda snapshot: snapshot.with_machines_not_found(("desk-09",)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.parametrize("second", CHANGES)
def test_a_changed_snapshot_keeps_what_was_read(first: str, second: str) -> None:
    changed = CHANGES[second](CHANGES[first](READ))
    assert changed.as_read == READ
    if "deepcopy" not in (first, second):
        assert changed.as_read is READ.as_read


def test_more_that_is_read_belongs_to_what_was_read() -> None:
    completed = READ.completed(hosts=[replace(ESX, others=())], vms=[replace(DESK, tags=("role:desktop",))])
    assert completed.as_read == completed
    assert (completed.hosts[ESX.ref].others, completed.vms[DESK.ref].tags) == ((), ("role:desktop",))
    changed = CHANGES["with_hosts"](READ).completed(vms=[replace(DESK, tags=())])
    assert changed.as_read == READ, "a change stays a change, whatever else is read"


def test_a_snapshot_is_freed_when_nobody_holds_it() -> None:
    snapshot = inventory([ESX], [DESK])
    freed = weakref.ref(snapshot)
    gc.disable()
    try:
        del snapshot
        assert freed() is None
    finally:
        gc.enable()


def test_what_was_read_is_no_part_of_the_value() -> None:
    changed = CHANGES["replace"](READ)
    assert changed == replace(READ, vms={}, origin=None)
    assert "origin" not in repr(changed)
