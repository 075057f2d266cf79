"""No step goes by an old look: none older than 30 s, none from before another change of ours to the same VM.

A look is told by the requests that reach the simulated vCenter, in order: it is a bulk read of a VM that was answered
whole. Client code has no part in this: neither its clocks nor what it takes for a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.sim.core.call import Call
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.server import SimServer
from gpuops.sim.wire.endpoint import Dispatcher
from gpuops.sim.wire.soap import SoapRequest
from gpuops.vsphere.connection import Connection
from tests.nights.judging.checkers import LOOK_S
from tests.nights.playing.soap import play_over_soap
from tests.sample import every_nth, mostly_long
from tests.wire.conftest import serve, target_of

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


__all__ = ["serve"]

SEEDS = range(20_000, 20_004)
"""Each draws a site, a policy, users, and faults of vCenter and network: slow replies, lost ones, tasks that fail."""
MANY = range(20_004, 20_200)

NOW = datetime(2026, 11, 2, tzinfo=UTC)


def nights(seeds: Sequence[int]) -> tuple[list[str], int]:
    """What was wrong in these nights, and how many steps they had."""
    wrong, steps = [], 0
    for seed in seeds:
        with looking() as looks:
            play_over_soap(seed)
        wrong += [f"seed {seed}: {problem}" for problem in looks.wrong]
        steps += looks.steps
    return wrong, steps


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_no_step_of_a_night_and_its_morning_goes_by_an_old_look(nth: int) -> None:
    wrong, steps = nights(every_nth(SEEDS, nth))
    assert wrong == []
    assert steps > (30 if nth == 1 else 3)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(2))
def test_no_step_of_many_nights_goes_by_an_old_look(part: int) -> None:
    """A twelfth of them a run. Two in five have no step: of 24 draws the poorest has 41."""
    wrong, steps = nights(every_nth(MANY[part::2], 12))
    assert wrong == []
    assert steps > 10


@pytest.mark.long
def test_no_change_of_a_vm_goes_by_an_old_look(serve: Callable[[str], SimServer], tmp_path: Path) -> None:
    requests = (Attach("ml-07", profile="a100-3-20c"), Detach("ml-07", all=True))
    with (
        looking() as looks,
        Connection(target_of(serve("lab"))) as connection,
        Site(connection, tmp_path, wall_clock) as site,
    ):
        for request in requests:
            assert run(request, site, apply=True).outcomes
    assert looks.wrong == []
    assert looks.steps >= len(requests)


@pytest.mark.parametrize(
    ("after_s", "wrong"),
    [(30, []), (31, ["SuspendVM_Task of vm-1 by a look 31 s old"])],
)
def test_the_age_of_a_look_is_told(after_s: int, wrong: list[str]) -> None:
    looks = Looks()
    looks.looked(["vm-1"], NOW)
    looks.sent("SuspendVM_Task", "vm-1", NOW + timedelta(seconds=after_s))
    assert looks.wrong == wrong


def test_a_look_from_before_a_change_of_ours_is_told() -> None:
    looks = Looks()
    looks.looked([], NOW)
    looks.written.add("vm-1")
    looks.sent("SuspendVM_Task", "vm-1", NOW)
    assert looks.wrong == ["SuspendVM_Task of vm-1 by a look before an earlier change of ours"]
