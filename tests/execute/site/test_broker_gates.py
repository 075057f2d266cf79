"""How machines or sessions missing from the broker's lists are judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuops.advise.desktop_sessions import NOT_IN_LIST
from gpuops.execute.site.policy_reads import BrokerGates, BrokerSessions
from gpuops.model.desktops.broker import (
    NO_MACHINE,
    BrokerVcenter,
    DesktopMachine,
    DesktopPool,
    DesktopPowerPolicy,
    DesktopSession,
    Gate,
    PoolKind,
)
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
VM = Vm("vm-1", "a", "/dc/vm/a")
SEEN = Inventory("vc", "8.0.3.0", NOW, vms={VM.ref: VM})
MACHINE = DesktopMachine("m1", "a", "office", path="/dc/vm/a", in_maintenance=True)
POOL = DesktopPool("office", "office", PoolKind.AUTOMATED, DesktopPowerPolicy.NONE)


class Broker:
    """It has one machine, and lists of it that are given."""

    def __init__(self, machine: DesktopMachine | None, *lists: tuple[DesktopMachine, ...]) -> None:
        self._machine = machine
        self._lists = list(lists)

    def pools(self) -> tuple[DesktopPool, ...]:
        return (POOL,)

    def vcenters(self) -> tuple[BrokerVcenter, ...]:
        return ()

    def machine(self, identity: str) -> DesktopMachine | None:
        return self._machine if self._machine is not None and self._machine.id == identity else None

    def machines(self) -> tuple[DesktopMachine, ...]:
        return self._lists.pop(0)

    def sessions(self) -> tuple[DesktopSession, ...]:
        return ()


def gates_of(broker: Broker) -> BrokerGates:
    # the calls that it has are enough
    return BrokerGates(lambda: broker, BrokerSessions(lambda: broker))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("machine", "instance_uuid", "lists", "gate"),
    [
        pytest.param(MACHINE, "m1", (), Gate(closed=True, machine="m1"), id="asked for by its id: no list"),
        pytest.param(None, "", ((), (MACHINE,)), Gate(closed=True, machine="m1"), id="the second list has it"),
        pytest.param(None, "", ((), ()), NO_MACHINE, id="two lists lack it"),
        pytest.param(None, "m1", ((), ()), NO_MACHINE, id="it is gone, and none is at its place"),
    ],
)
def test_a_machine_is_gone_when_nothing_knows_it(
    machine: DesktopMachine | None, instance_uuid: str, lists: tuple[tuple[DesktopMachine, ...], ...], gate: Gate
) -> None:
    assert gates_of(Broker(machine, *lists)).gates([VM], {"vm-1": instance_uuid}, SEEN) == {"vm-1": gate}


def test_of_a_machine_that_the_list_lacks_no_session_is_known() -> None:
    gates = gates_of(Broker(MACHINE, ()))
    gates.gates([VM], {"vm-1": "m1"}, SEEN)
    session = gates.sessions([VM], SEEN)["vm-1"]
    assert (session.used, session.because) == (None, "the broker's list of machines lacks it")


def test_a_machine_that_names_a_session_is_not_believed_to_be_without() -> None:
    """The list of machines is as old as that of sessions."""
    gates = gates_of(Broker(replace(MACHINE, session="7"), (MACHINE,)))
    gates.gates([VM], {"vm-1": "m1"}, SEEN)
    session = gates.sessions([VM], SEEN)["vm-1"]
    assert (session.used, session.because) == (None, NOT_IN_LIST)
