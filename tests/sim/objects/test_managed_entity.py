"""What every object of the inventory shows, whatever its type."""

from __future__ import annotations

from pyVmomi import vim

from gpuops.sim.core.registry import vmomi_type
from tests.sim.lab import Lab, Q

LISTS = ["triggeredAlarmState", "declaredAlarmState", "disabledMethod", "permission", "configIssue", "tag"]


def test_lists_without_entries_are_sent_empty(lab: Lab) -> None:
    """As vCenter sends them: a client that reads `disabledMethod` of an unset property fails."""
    entities = [vmomi_type(obj.wsdl_name)(obj.moid) for obj in lab.world.by_type("ManagedEntity")]
    properties = Q.PropertySpec(type=vim.ManagedEntity, pathSet=LISTS)
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=entity) for entity in entities], propSet=[properties])
    contents = lab.si.content.propertyCollector.RetrieveContents([spec])
    assert len(contents) == len(entities)
    for content in contents:
        assert {prop.name: list(prop.val) for prop in content.propSet} == {name: [] for name in LISTS}, content.obj


def test_an_entity_shows_its_permissions(lab: Lab) -> None:
    vm, manager = lab.vm("ml-07"), lab.si.content.authorizationManager
    reader = next(role.roleId for role in manager.roleList if role.name == "ReadOnly")
    assert list(vm.permission) == []
    grant = vim.AuthorizationManager.Permission(principal="watcher", group=False, roleId=reader, propagate=True)
    manager.SetEntityPermissions(vm, [grant])
    assert [(grant.principal, grant.roleId, grant.entity) for grant in vm.permission] == [("watcher", reader, vm)]
    manager.RemoveEntityPermission(vm, "watcher", False)
    assert list(vm.permission) == []
