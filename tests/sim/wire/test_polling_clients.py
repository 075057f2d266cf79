"""Third-party clients on the default clock: they poll a task, or come back later, and see it end.

Real time is what the fixture says, so that nothing depends on how fast the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVim.task import WaitForTask
from pyVmomi import vim, vmodl

from gpuops.errors import UsageError
from gpuops.sim.core import sim_clock
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import start
from gpuops.sim.vcenter.tasks import POLLS_UNTIL_END
from gpuops.sim.wire import sim_client
from gpuops.sim.wire.sim_client import SimClient
from gpuops.sim.world import World
from tests.sim.lab import Lab, connect

Q = vmodl.query.PropertyCollector
SLOW_S = 3600.0


@dataclass
class Real:
    """The real seconds that have passed."""

    passed_s: float = 0.0


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    seconds = Real()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sim_clock, "passed_s", lambda: seconds.passed_s)
        yield seconds


@pytest.fixture(scope="module")
def lab(real: Real) -> Iterator[Lab]:
    """The scenario `lab` as anybody starts it."""
    with start("lab", tls=False) as server:
        si = connect(server)
        assert SimClient(sim_client.of(server)).clock()["mode"] == "virtual"
        yield Lab(server.world, si)
        Disconnect(si)
    assert server.world.bugs == []


@pytest.fixture
def slow(lab: Lab) -> Iterator[Any]:
    """A task that takes an hour: `ml-07` is renamed."""
    lab.world.injector.add(Rule(Effect.SLOW, method="Rename_Task", factor=SLOW_S / 0.2))
    yield lab.vm("ml-07").Rename_Task("ml-07")
    lab.world.injector.clear()


def info_of(task: Any, *paths: str) -> Any:
    prop_spec = Q.PropertySpec(type=vim.Task, pathSet=list(paths))
    return Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=task)], propSet=[prop_spec])


def has_ended(task: Any) -> bool:
    return task.info.state in (vim.TaskInfo.State.success, vim.TaskInfo.State.error)


def by_property(lab: Lab, task: Any) -> Callable[[], bool]:
    """As most of the community samples do it: `while task.info.state not in [...]: time.sleep(1)`."""

    def look() -> bool:
        time.sleep(0)
        return has_ended(task)

    return look


def by_retrieval(lab: Lab, task: Any) -> Callable[[], bool]:
    """One RetrievePropertiesEx for each look."""

    def look() -> bool:
        page = lab.si.content.propertyCollector.RetrievePropertiesEx(
            [info_of(task, "info.state", "info.progress")], Q.RetrieveOptions()
        )
        return {prop.name: prop.val for prop in page.objects[0].propSet}["info.state"] == "success"

    return look


def by_updates(ask: Callable[[Any, str], Any]) -> Callable[[Lab, Any], Callable[[], bool]]:
    """One request for updates, answered at once, for each look."""

    def make_look(lab: Lab, task: Any) -> Callable[[], bool]:
        collector = lab.si.content.propertyCollector.CreatePropertyCollector()
        collector.CreateFilter(info_of(task, "info.state"), False)
        version = [""]

        def look() -> bool:
            update = ask(collector, version[0])
            if update is None:
                return False
            version[0] = update.version
            (change,) = update.filterSet[0].objectSet[0].changeSet
            return bool(change.val == "success")

        return look

    return make_look


def from_recent_tasks(lab: Lab, task: Any) -> Callable[[], bool]:
    """By way of the VM: its recentTask leads to the tasks."""
    vm = lab.vm("ml-07")
    walk = Q.TraversalSpec(type=vim.VirtualMachine, path="recentTask", skip=False)
    state = Q.PropertySpec(type=vim.Task, pathSet=["info"])
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=vm, skip=True, selectSet=[walk])], propSet=[state])

    def look() -> bool:
        contents = lab.si.content.propertyCollector.RetrieveProperties([spec])
        return all(content.propSet[0].val.state == "success" for content in contents)

    return look


POLLERS = {
    "the state, again and again": by_property,
    "RetrievePropertiesEx": by_retrieval,
    "CheckForUpdates": by_updates(lambda collector, version: collector.CheckForUpdates(version)),
    "WaitForUpdatesEx for no time": by_updates(
        lambda collector, version: collector.WaitForUpdatesEx(version, Q.WaitOptions(maxWaitSeconds=0))
    ),
    "recentTask": from_recent_tasks,
}


@pytest.mark.parametrize("poller", POLLERS.values(), ids=POLLERS)
def test_who_polls_a_task_sees_its_end(lab: Lab, slow: Any, poller: Callable[[Lab, Any], Callable[[], bool]]) -> None:
    look = poller(lab, slow)
    looks = 1
    while not look():
        looks += 1
        assert looks <= POLLS_UNTIL_END + 2, "the first one of a filter tells what is there"
    info = slow.info
    assert info.completeTime - info.startTime == timedelta(seconds=SLOW_S)


@pytest.mark.parametrize("with_session", [True, False])
def test_pyvmomi_itself_waits_for_a_task(lab: Lab, slow: Any, *, with_session: bool) -> None:
    assert WaitForTask(slow, si=lab.si if with_session else None) == "success"


@pytest.mark.long
def test_who_comes_back_later_finds_it_done_at_its_time(lab: Lab, real: Real) -> None:
    begun = moment(lab.world)
    on, renamed = lab.vm("ml-07").PowerOnVM_Task(), lab.vm("ml-08").Rename_Task("ml-08")
    real.passed_s += 600
    assert lab.power("ml-07") == "poweredOn"
    assert moment(lab.world) == begun + timedelta(seconds=600)
    first, last = renamed.info.completeTime, on.info.completeTime
    assert begun < first < last < begun + timedelta(seconds=60)
    lab.power_off("ml-07")


@pytest.mark.long
def test_a_task_that_hangs_is_not_brought_nearer(lab: Lab, real: Real) -> None:
    lab.world.injector.add(Rule(Effect.STUCK, method="Rename_Task"))
    task = lab.vm("legacy").Rename_Task("legacy")
    begun = moment(lab.world)
    for _ in range(3 * POLLS_UNTIL_END):
        assert not has_ended(task)
    assert moment(lab.world) == begun
    lab.world.injector.clear()


@pytest.mark.long
def test_an_ended_task_moves_nothing(lab: Lab, slow: Any) -> None:
    WaitForTask(slow, si=lab.si)
    begun = moment(lab.world)
    for _ in range(POLLS_UNTIL_END):
        assert has_ended(slow)
    assert moment(lab.world) == begun


@pytest.mark.long
def test_an_unknown_clock_is_said() -> None:
    with pytest.raises(UsageError, match="no clock 'sundial'"):
        start("lab", clock="sundial")


def moment(world: World) -> datetime:
    with world.lock:
        return world.clock.now()
