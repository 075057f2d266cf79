"""Recording: an applied effect goes to the ledger as what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuops.sim.render.ledger_facts import changed, facts

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.entities import VmEntity


@contextmanager
def recorded(vm: VmEntity, call: Call) -> Iterator[None]:
    """Write what the block changes in the VM's state to the ledger; nothing when it changes nothing or raises."""
    before = facts(vm.state)
    yield
    old, new = changed(before, facts(vm.state))
    if new:
        vm.world.ledger.record(call, vm, before=old, after=new)
