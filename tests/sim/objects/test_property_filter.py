"""Incremental updates through real pyVmomi: each change is reported once, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.lab import connect
from tests.sim.objects.test_property_collector import Q, spec_of_object, view_spec
from tests.sim.small_world import Folder, Machine, small_world


def object_updates(update_set: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, moid, changes) of every object update."""
    return [
        (update.kind, update.obj._moId, {change.name: change.val for change in update.changeSet})
        for filter_set in update_set.filterSet
        for update in filter_set.objectSet
    ]


def now(collector: Any, version: str = "") -> Any:
    return collector.WaitForUpdatesEx(version, Q.WaitOptions(maxWaitSeconds=0))


@pytest.fixture
def collector(si: Any) -> Any:
    return si.content.propertyCollector.CreatePropertyCollector()


def test_objects_enter_then_only_changes_are_told(world: World, si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name", "runtime.powerState"]), False)
    first = now(collector)
    assert [(kind, moid) for kind, moid, _ in object_updates(first)] == [("enter", f"vm-{n}") for n in (1, 2, 3)]
    assert now(collector, first.version) is None
    machine = world.get("vm-2")
    machine.power = "poweredOn"
    machine.touch("runtime")
    second = now(collector, first.version)
    assert object_updates(second) == [("modify", "vm-2", {"runtime.powerState": "poweredOn"})]
    assert now(collector, second.version) is None


def test_a_touch_that_changes_nothing_is_not_told(world: World, si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name", "config.hardware.device"]), False)
    first = now(collector)
    world.get("vm-1").touch("config", "name")
    assert now(collector, first.version) is None


def test_one_change_costs_one_rendering(world: World, si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["config.hardware.device"]), False)
    version = now(collector).version
    machines = [world.get(f"vm-{number}") for number in (1, 2, 3)]
    machines[1].device_keys.append(13001)
    machines[1].touch("config.hardware.device")
    now(collector, version)
    assert [machine.reads for machine in machines] == [1, 2, 1]


def test_objects_of_a_view_enter_and_leave(world: World, si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name"]), False)
    version = now(collector).version
    folder = world.get("group-v3")
    assert isinstance(folder, Folder)
    folder.lose(world.get("vm-1"))
    Machine(world, "vm-9", "ml-09", folder)
    update = now(collector, version)
    assert sorted(object_updates(update)) == [("enter", "vm-9", {"name": "ml-09"}), ("leave", "vm-1", {})]


def test_updates_come_in_pages(si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name"]), False)
    options = Q.WaitOptions(maxWaitSeconds=0, maxObjectUpdates=2)
    first = collector.WaitForUpdatesEx("", options)
    assert first.truncated
    assert len(object_updates(first)) == 2
    second = collector.WaitForUpdatesEx(first.version, options)
    assert not second.truncated
    assert len(object_updates(second)) == 1


@pytest.mark.long
@pytest.mark.parametrize(("machines", "pages"), [(250, [100, 100, 50]), (200, [100, 100]), (99, [99])])
def test_a_hundred_updates_fill_a_page(machines: int, pages: list[int]) -> None:
    with SimServer(small_world(machines), tls=False) as large:
        si = connect(large)
        collector = si.content.propertyCollector
        collector.CreateFilter(view_spec(si, ["name"]), False)
        sizes, version, truncated = [], "", True
        while truncated:
            update = now(collector, version)
            sizes.append(len(object_updates(update)))
            version, truncated = update.version, update.truncated
        Disconnect(si)
    assert sizes == pages


def test_a_lost_reply_is_told_again(world: World, si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["runtime.powerState"]), False)
    version = now(collector).version
    machine = world.get("vm-1")
    machine.power = "suspended"
    machine.touch("runtime.powerState")
    lost = now(collector, version)
    repeated = now(collector, version)
    assert object_updates(repeated) == object_updates(lost) == [("modify", "vm-1", {"runtime.powerState": "suspended"})]
    assert repeated.version == lost.version


def test_an_unknown_version_is_refused(si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name"]), False)
    now(collector)
    with pytest.raises(vmodl.query.InvalidCollectorVersion):
        now(collector, "77")


def test_starting_over_tells_everything_again(si: Any, collector: Any) -> None:
    collector.CreateFilter(view_spec(si, ["name"]), False)
    assert len(object_updates(now(collector))) == 3
    assert len(object_updates(now(collector))) == 3


def test_an_unset_property_is_removed(world: World, si: Any, collector: Any) -> None:
    path = 'config.extraConfig["a.b"].value'
    collector.CreateFilter(spec_of_object(vim.VirtualMachine("vm-1", si._stub), [path]), False)
    version = now(collector).version
    machine = world.get("vm-1")
    del machine.options["a.b"]
    machine.touch("config.extraConfig")
    update = now(collector, version)
    (change,) = update.filterSet[0].objectSet[0].changeSet
    assert (change.name, change.op, change.val) == (path, "remove", None)


def test_a_destroyed_filter_is_silent(world: World, si: Any, collector: Any) -> None:
    created = collector.CreateFilter(view_spec(si, ["name"]), False)
    version = now(collector).version
    created.DestroyPropertyFilter()
    world.get("vm-1").name = "other"
    world.get("vm-1").touch("name")
    assert now(collector, version) is None
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        created.DestroyPropertyFilter()


def test_missing_objects_are_reported_when_asked(si: Any, collector: Any) -> None:
    spec = spec_of_object(vim.VirtualMachine("vm-404", si._stub), ["name"])
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        collector.CreateFilter(spec, False)
    spec.reportMissingObjectsInResults = True
    collector.CreateFilter(spec, False)
    (missing,) = now(collector).filterSet[0].missingSet
    assert missing.obj._moId == "vm-404"


def test_two_sessions_have_collectors_of_their_own(server: Any, si: Any) -> None:
    second_client = connect(server)
    si.content.propertyCollector.CreateFilter(view_spec(si, ["name"]), False)
    assert len(si.content.propertyCollector.filter) == 1
    assert second_client.content.propertyCollector.filter == []
    Disconnect(second_client)


def test_a_wait_can_be_cancelled(world: World, server: Any, si: Any) -> None:
    collector = si.content.propertyCollector
    collector.CreateFilter(view_spec(si, ["name"]), False)
    version = now(collector).version
    ended: list[Any] = []

    def wait() -> None:
        try:
            collector.WaitForUpdatesEx(version, Q.WaitOptions())
        except vmodl.fault.RequestCanceled as fault:
            ended.append(fault)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(100):
        collector.CancelWaitForUpdates()
        waiting.join(0.1)
        if not waiting.is_alive():
            break
    assert len(ended) == 1


def test_destroying_a_collector_ends_its_filters(si: Any, collector: Any) -> None:
    created = collector.CreateFilter(view_spec(si, ["name"]), False)
    collector.DestroyPropertyCollector()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        created.DestroyPropertyFilter()
    with pytest.raises(vmodl.fault.NotSupported):
        si.content.propertyCollector.DestroyPropertyCollector()
