"""Looks: whether a step was sent by an old look, told by the requests that reached the simulated vCenter, in order.

A look at a VM is a bulk read of it that was answered whole. Client code has no part in this: neither its clocks nor
what it takes for a look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from unittest.mock import patch

from gpuops.sim.core.call import Call
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.wire.endpoint import Dispatcher
from gpuops.sim.wire.soap import SoapRequest

LOOK_S: Final = 30.0
TAKING: Final = frozenset(
    {"SuspendVM_Task", "ShutdownGuest", "PowerOffVM_Task", "RelocateVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"}
)
LEASE: Final = "gpuops-lease-"
"""Operations on the lock VM: compare-and-set by its changeVersion, no step of a run."""


@dataclass
class Looks:
    """The requests so far: when each VM was last looked at, and which of them were written to since."""

    looked_at: dict[str, datetime] = field(default_factory=dict)
    all_looked_at: datetime | None = None
    written: set[str] = field(default_factory=set)
    steps: int = 0
    wrong: list[str] = field(default_factory=list)

    def sent(self, method: str, vm: str, at: datetime) -> None:
        """A step of ours arrives."""
        self.steps += 1
        looks = [look for look in (self.looked_at.get(vm), self.all_looked_at) if look is not None]
        age_s = (at - max(looks)).total_seconds() if looks else float("inf")
        if age_s > LOOK_S:
            self.wrong.append(f"{method} of {vm} by a look {age_s:.0f} s old")
        if vm in self.written:
            self.wrong.append(f"{method} of {vm} by a look before an earlier change of ours")

    def looked(self, vms: list[str], at: datetime) -> None:
        """A bulk read was answered; of no named VM, it was one of them all."""
        if vms:
            self.looked_at |= dict.fromkeys(vms, at)
            self.written -= set(vms)
        else:
            self.all_looked_at = at
            self.written.clear()


@contextmanager
def looking() -> Iterator[Looks]:
    """What the simulated vCenters of this process are asked within the block."""
    looks, answer = Looks(), Dispatcher._answer

    def note_request(self: Dispatcher, request: SoapRequest, call: Call) -> Any:
        at = self.world.clock.now()  # a look is as old as its question
        ours = request.operation_id.startswith("gpuops-") and not request.operation_id.startswith(LEASE)
        if ours and request.method in TAKING:
            looks.sent(request.method, request.moid, at)
        if ours:
            looks.written |= {request.moid, *_vm_refs(request, "entity")}
        reply = answer(self, request, call)
        if request.method == "RetrievePropertiesEx" and (reply.status, reply.ending) == (200, Ending.WHOLE):
            kinds = {element.text for element in request.element.iter("{*}type")}
            vms_read = _vm_refs(request, "obj")
            if "runtime.powerState" in {element.text for element in request.element.iter("{*}pathSet")}:
                whole = "ContainerView" in kinds
                looks.looked([] if whole else vms_read, at)
        return reply

    with patch.object(Dispatcher, "_answer", note_request):
        yield looks


def _vm_refs(request: SoapRequest, tag: str) -> list[str]:
    elements = (element for element in request.element.iter(f"{{*}}{tag}") if element.get("type") == "VirtualMachine")
    return [element.text or "" for element in elements]
