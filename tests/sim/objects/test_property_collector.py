"""The property collector through real pyVmomi: bulk reads, and updates that report each change once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.lab import connect
from tests.sim.small_world import Folder, Machine, small_world

Q = vmodl.query.PropertyCollector


def view_spec(si: Any, paths: list[str], kind: Any = vim.VirtualMachine, **options: Any) -> Any:
    """A filter spec for all objects of a type below the root folder."""
    view = si.content.viewManager.CreateContainerView(si.content.rootFolder, [kind], True)
    traversal = Q.TraversalSpec(name="view", type=vim.view.ContainerView, path="view", skip=False)
    return Q.FilterSpec(
        objectSet=[Q.ObjectSpec(obj=view, skip=True, selectSet=[traversal])],
        propSet=[Q.PropertySpec(type=kind, all=False, pathSet=paths, **options)],
    )


def spec_of_object(obj: Any, paths: list[str] | None = None, *, everything: bool = False) -> Any:
    """A filter spec for one object."""
    prop_set = [Q.PropertySpec(type=type(obj), all=everything, pathSet=paths or [])]
    return Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=obj)], propSet=prop_set)


def as_dicts(contents: Any) -> dict[str, dict[str, Any]]:
    return {content.obj._moId: {prop.name: prop.val for prop in content.propSet} for content in contents}


def test_a_view_is_read_in_one_call(si: Any) -> None:
    result = si.content.propertyCollector.RetrievePropertiesEx(
        [view_spec(si, ["name", "runtime.powerState"])], Q.RetrieveOptions()
    )
    assert result.token is None
    assert as_dicts(result.objects) == {
        "vm-1": {"name": "ml-01", "runtime.powerState": "poweredOff"},
        "vm-2": {"name": "ml-02", "runtime.powerState": "poweredOff"},
        "vm-3": {"name": "ml-03", "runtime.powerState": "poweredOff"},
    }


def test_pages_follow_tokens(world: World, si: Any) -> None:
    collector = si.content.propertyCollector
    page = collector.RetrievePropertiesEx([view_spec(si, ["name"])], Q.RetrieveOptions(maxObjects=2))
    assert list(as_dicts(page.objects)) == ["vm-1", "vm-2"]
    next_page = collector.ContinueRetrievePropertiesEx(page.token)
    assert list(as_dicts(next_page.objects)) == ["vm-3"]
    assert next_page.token is None
    with pytest.raises(vmodl.fault.InvalidArgument):
        collector.ContinueRetrievePropertiesEx(page.token)


def test_the_server_may_page_by_itself(world: World, si: Any) -> None:
    world.page_limit = 1
    page = si.content.propertyCollector.RetrievePropertiesEx([view_spec(si, ["name"])], Q.RetrieveOptions())
    assert len(page.objects) == 1
    assert page.token
    si.content.propertyCollector.CancelRetrievePropertiesEx(page.token)
    with pytest.raises(vmodl.fault.InvalidArgument):
        si.content.propertyCollector.ContinueRetrievePropertiesEx(page.token)


def test_nothing_selected_is_no_result(si: Any) -> None:
    spec = view_spec(si, ["name"], kind=vim.HostSystem)
    assert si.content.propertyCollector.RetrievePropertiesEx([spec], Q.RetrieveOptions()) is None
    assert si.content.propertyCollector.RetrieveProperties([spec]) == []


def test_recursive_named_traversals_are_followed(si: Any) -> None:
    folders = Q.TraversalSpec(
        name="folders",
        type=vim.Folder,
        path="childEntity",
        skip=False,
        selectSet=[Q.SelectionSpec(name="folders")],
    )
    spec = Q.FilterSpec(
        objectSet=[Q.ObjectSpec(obj=si.content.rootFolder, skip=False, selectSet=[folders])],
        propSet=[Q.PropertySpec(type=vim.ManagedEntity, pathSet=["name"])],
    )
    contents = si.content.propertyCollector.RetrieveProperties([spec])
    assert list(as_dicts(contents)) == ["group-d1", "group-v3", "vm-1", "vm-2", "vm-3"]


def test_an_unknown_named_traversal_is_an_argument_fault(si: Any) -> None:
    spec = Q.FilterSpec(
        objectSet=[Q.ObjectSpec(obj=si.content.rootFolder, selectSet=[Q.SelectionSpec(name="nowhere")])],
        propSet=[Q.PropertySpec(type=vim.Folder, pathSet=["name"])],
    )
    with pytest.raises(vmodl.fault.InvalidArgument):
        si.content.propertyCollector.RetrieveProperties([spec])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("config.hardware.device[13000].backing.vgpu", "grid_a100-3-20c"),
        ("config.hardware.device[4000].macAddress", "00:50:56:00:00:01"),
        ('config.extraConfig["a.b"].value', "1"),
        ('config.extraConfig["note"].value', "x<y & z"),
    ],
)
def test_paths_may_index_lists_by_key(si: Any, path: str, expected: str) -> None:
    vm = vim.VirtualMachine("vm-1", si._stub)
    contents = si.content.propertyCollector.RetrieveProperties([spec_of_object(vm, [path])])
    assert as_dicts(contents) == {"vm-1": {path: expected}}


def test_an_absent_key_is_an_absent_property(si: Any) -> None:
    vm = vim.VirtualMachine("vm-1", si._stub)
    contents = si.content.propertyCollector.RetrieveProperties([spec_of_object(vm, ["config.hardware.device[9999]"])])
    assert as_dicts(contents) == {"vm-1": {}}


@pytest.mark.parametrize(
    "path", ["nmae", "runtime.nmae", "config.hardware.device.key", "name[1]", "", "name.", "config..hardware"]
)
def test_a_wrong_path_names_itself(si: Any, path: str) -> None:
    vm = vim.VirtualMachine("vm-1", si._stub)
    with pytest.raises(vmodl.query.InvalidProperty) as caught:
        si.content.propertyCollector.RetrieveProperties([spec_of_object(vm, ["name", path])])
    assert caught.value.name == path


def test_an_unreadable_property_is_missing_with_its_fault(si: Any) -> None:
    vm = vim.VirtualMachine("vm-1", si._stub)
    (content,) = si.content.propertyCollector.RetrieveProperties([spec_of_object(vm, ["name", "config.version"])])
    assert [prop.name for prop in content.propSet] == ["name"]
    (missing,) = content.missingSet
    assert missing.path == "config.version"
    assert isinstance(missing.fault, vim.fault.NoPermission)
    assert missing.fault.privilegeId == "System.Read"


def test_a_bug_in_one_property_leaves_the_others_readable(world: World, si: Any) -> None:
    vm = vim.VirtualMachine("vm-1", si._stub)
    (content,) = si.content.propertyCollector.RetrieveProperties([spec_of_object(vm, ["name", "guest.toolsStatus"])])
    assert [prop.name for prop in content.propSet] == ["name"]
    assert isinstance(content.missingSet[0].fault, vmodl.fault.SystemError)
    assert len(world.bugs) == 1
    world.bugs.clear()


def test_all_properties_of_a_service_object(si: Any) -> None:
    (content,) = si.content.propertyCollector.RetrieveProperties(
        [spec_of_object(si.content.viewManager, everything=True)]
    )
    assert "viewList" in {prop.name for prop in content.propSet}


def test_a_missing_object_is_a_fault_or_is_left_out(si: Any) -> None:
    spec = spec_of_object(vim.VirtualMachine("vm-404", si._stub), ["name"])
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        si.content.propertyCollector.RetrieveProperties([spec])
    spec.reportMissingObjectsInResults = True
    assert si.content.propertyCollector.RetrieveProperties([spec]) == []


def test_each_property_is_rendered_once_until_it_is_touched(world: World, si: Any) -> None:
    machine = world.get("vm-1")
    assert isinstance(machine, Machine)
    spec = spec_of_object(vim.VirtualMachine("vm-1", si._stub), ["config.hardware.device"])
    for _ in range(3):
        si.content.propertyCollector.RetrieveProperties([spec])
    assert machine.reads == 1
    machine.device_keys.append(13001)
    machine.touch("config")
    contents = si.content.propertyCollector.RetrieveProperties([spec])
    assert [device.key for device in as_dicts(contents)["vm-1"]["config.hardware.device"]] == [4000, 13000, 13001]


def test_a_view_follows_the_inventory(world: World, si: Any) -> None:
    view = si.content.viewManager.CreateContainerView(si.content.rootFolder, [vim.VirtualMachine], True)
    folder = world.get("group-v3")
    assert isinstance(folder, Folder)
    Machine(world, "vm-4", "ml-04", folder)
    assert [vm.name for vm in view.view] == ["ml-01", "ml-02", "ml-03", "ml-04"]
    folder.lose(world.get("vm-1"))
    assert [vm.name for vm in view.view] == ["ml-02", "ml-03", "ml-04"]


def test_a_view_that_does_not_recurse_holds_children_only(si: Any) -> None:
    view = si.content.viewManager.CreateContainerView(si.content.rootFolder, [], False)
    assert [child.name for child in view.view] == ["machines"]


def test_a_list_view_is_what_the_client_makes_it(si: Any) -> None:
    first, second = (vim.VirtualMachine(moid, si._stub) for moid in ("vm-1", "vm-2"))
    nowhere = vim.VirtualMachine("vm-404", si._stub)
    view = si.content.viewManager.CreateListView([first])
    assert view.ModifyListView(add=[second, nowhere], remove=[first]) == [nowhere]
    assert view.view == [second]
    view.ResetListView([first])
    assert view.view == [first]
    view.DestroyView()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        _ = view.view


def test_views_end_with_their_session(si: Any, server: Any) -> None:
    view = si.content.viewManager.CreateContainerView(si.content.rootFolder, [], True)
    manager = si.content.sessionManager
    manager.Logout()
    manager.Login(server.username, server.password)
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        _ = view.view


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
