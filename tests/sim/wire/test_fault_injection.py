"""Rules of injected trouble: what they strike, how often, and which are refused. The catalogue is in `faults/`."""

from __future__ import annotations

from typing import Any

import pytest
from pyVim.connect import VimSessionOrientedStub
from pyVmomi import vim, vmodl

from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.objects.test_tasks import machine


def test_a_named_fault_is_typed_and_complete(world: World, si: Any) -> None:
    world.injector.add(Rule(Effect.FAULT, method="PowerOn*", target="ml-02", fault="TaskInProgress"))
    machine(si, 1).PowerOnVM_Task()
    with pytest.raises(vim.fault.TaskInProgress):
        machine(si, 2).PowerOnVM_Task()
    machine(si, 2).PowerOnVM_Task()


def test_a_session_oriented_stub_logs_in_again(world: World, si: Any, server: SimServer) -> None:
    login = VimSessionOrientedStub.makeUserLoginMethod(server.username, server.password)
    stub = VimSessionOrientedStub(si._stub, login, retryDelay=0)
    si.content.sessionManager.Logout()
    oriented = vim.ServiceInstance("ServiceInstance", stub)
    before = oriented.CurrentTime()
    world.injector.add(Rule(Effect.EXPIRE, method="CurrentTime"))
    assert oriented.CurrentTime() > before


def test_skip_and_times_choose_the_turn(world: World, si: Any) -> None:
    world.injector.add(Rule(Effect.FAULT, method="CurrentTime", skip=1, times=2, fault="HostNotReachable"))
    answers = []
    for _ in range(5):
        try:
            si.CurrentTime()
            answers.append("ok")
        except vmodl.fault.HostNotReachable:
            answers.append("fault")
    assert answers == ["ok", "fault", "fault", "ok", "ok"]


def test_probability_comes_from_the_seed(world: World, si: Any) -> None:
    rule = Rule(Effect.FAULT, method="CurrentTime", times=None, probability=0.5)

    def run() -> list[bool]:
        world.injector.__init__(world, 4, world.injector.outside_events)  # type: ignore[misc]
        world.injector.add(rule)
        struck = []
        for _ in range(20):
            try:
                si.CurrentTime()
                struck.append(False)
            except vmodl.fault.SystemError:
                struck.append(True)
        return struck

    first = run()
    assert run() == first
    assert 3 < sum(first) < 17


def test_a_rule_round_trips_through_json() -> None:
    rule = Rule(Effect.TASK, method="Suspend*", fault="NoDiskSpace", probability=0.1)
    assert Rule.from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "missing required field effect"),
        ({"effect": "explode"}, "effect: invalid enum value 'explode'"),
        ({"effect": "reset", "colour": "red"}, "colour: unknown key"),
        ({"effect": "delay", "delay_s": float("inf")}, "delay_s: inf is not a finite number"),
        ({"effect": "delay", "factor": float("nan")}, "factor: nan is not a finite number"),
        ({"effect": "delay", "delay_s": "long"}, "delay_s: expected float, got str"),
        ({"effect": "task", "share": 1.5}, "share: expected float <= 1.0"),
        ({"effect": "reset", "skip": -1}, "skip: expected int >= 0"),
        ({"effect": "reset", "times": None, "every": 0}, "every: expected int >= 1"),
    ],
)
def test_a_wrong_rule_is_refused(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=f"^not a fault rule: {reason}$"):
        Rule.from_json(document)
