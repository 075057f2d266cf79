"""Bulk reads through real pyVmomi: views, traversals, paging, missing and wrong properties."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.world import World
from tests.sim.small_world import Folder, Machine

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
