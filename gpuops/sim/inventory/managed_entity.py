"""The base of every object of the inventory tree, how VMs enter and leave it, and fresh ids from the world's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import children, escaped
from gpuops.sim.core.managed_object import UNSET, ManagedObject, Properties, method, prop
from gpuops.sim.inventory import faults

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World

ADMINISTRATOR_ROLE = -1
EMPTY: Final = ("triggeredAlarmState", "declaredAlarmState", "disabledMethod", "configIssue", "tag")
"""Lists of every entity that have no entries here; vCenter sends them empty."""
LONGEST_NAME: Final = 80
"""Characters of a name (VMware vSphere docs, "Virtual Machine Name and Folder" and "Create a Folder")."""


class ManagedEntity(ManagedObject):
    """An object with a name, escaped as vCenter keeps it, and a place in the tree.

    `attributes` are custom field values by key.
    """

    wsdl_name = "ManagedEntity"
    world: World

    property_table: ClassVar[Properties] = {
        "name": lambda self: self.name,
        "parent": lambda self: self.world.get(self.parent).ref if self.parent else UNSET,
        "customValue value": lambda self: custom_values(self.attributes),
        "availableField": lambda self: [field for field in self._all_fields() if _applies(field, self.ref)],
        "overallStatus configStatus": lambda self: "green",
        "effectiveRole": lambda self: [ADMINISTRATOR_ROLE],
        "alarmActionsEnabled": lambda self: True,
        "permission": lambda self: [
            grant.to_vmomi(self) for grant in self.world.authority.permissions if grant.moid == self.moid
        ],
        "recentTask": lambda self: [task.ref for task in self.world.tasks.recent(self)],
    }

    def __init__(
        self, world: World, moid: str, name: str, parent: str | None, attributes: dict[int, str] | None = None
    ) -> None:
        super().__init__(world, moid)
        self.name = escaped(name)
        self.parent = parent
        self.attributes = attributes or {}

    @property
    def display_name(self) -> str:
        return self.name

    def parent_object(self) -> ManagedObject | None:
        # not by the property, which is made of this: every call and every event asks for it
        return self.world.find(self.parent) if self.parent is not None else None

    def rename(self, name: str) -> None:
        self.name = name
        self.touch("name", "summary", "config")

    def checked_name(self, name: str, excluding: ManagedEntity | None = None) -> str:
        """A name for a child of this object, as vCenter keeps it.

        Raises InvalidName, and DuplicateName when another child has it (vSphere API, Folder.CreateFolder).
        """
        if not name.strip() or len(name) > LONGEST_NAME:
            raise faults.invalid_name(name)
        stored_name = escaped(name)
        self.refuse_duplicate(stored_name, excluding)
        return stored_name

    def refuse_duplicate(self, name: str, excluding: ManagedEntity | None = None) -> None:
        """Raises DuplicateName when another child has that name."""
        for child in children(self):
            if child.display_name == name and child is not excluding:
                raise faults.duplicate_name(name, child.ref)

    def post(self, call: Call, kind: str, **fields: Any) -> None:
        self.world.events.post(call, kind, self, **fields)

    def set_attribute(self, key: int, value: str) -> None:
        """Set a custom field; an empty value clears it."""
        values = {**self.attributes, key: value}
        self.attributes = {key: text for key, text in values.items() if text != ""}
        self.touch("customValue", "value", "summary")

    def _empty(self) -> Any:
        return []

    for path in EMPTY:
        prop(path)(_empty)
    del path

    def _all_fields(self) -> list[Any]:
        manager = self.world.find("CustomFieldsManager")
        return list(manager.read("field")) if manager else []

    @method
    def setCustomValue(self, call: Call, key: str, value: str) -> None:
        """Set the custom field named `key`. Raises InvalidArgument for a field that is not defined."""
        field = next((field for field in self._all_fields() if field.name == key), None)
        if field is None:
            raise faults.wrong_argument("key", f"No custom field is named {key}.")
        write_attribute(call, self, field.key, key, value)

    @method
    def Reload(self, call: Call) -> None:
        """Do nothing: no files outside the simulated vCenter exist that could have changed."""

    @method
    def Rename_Task(self, call: Call, newName: str) -> Any:
        """Return the task that renames the object. Raises DuplicateName, InvalidName, also in the task."""

        def check_new_name() -> str:
            parent = self.parent_object()
            return parent.checked_name(newName, self) if isinstance(parent, ManagedEntity) else newName

        def finish() -> None:
            before, name = self.name, check_new_name()
            self.rename(name)
            self.world.ledger.record(call, self, before={"name": before}, after={"name": name})

        return self.world.tasks.start(call, "Rename_Task", self, 0.2, begin=check_new_name, finish=finish)


def _applies(field: Any, reference: Any) -> bool:
    return field.managedObjectType is None or isinstance(reference, field.managedObjectType)


def custom_values(attributes: dict[int, str]) -> list[Any]:
    """Custom field values, as every entity and summary lists them."""
    return [vim.CustomFieldsManager.StringValue(key=key, value=value) for key, value in sorted(attributes.items())]


def write_attribute(call: Call, entity: Any, key: int, name: str, value: str) -> None:
    """Set a custom field of an entity for a client's call; post the event and record the change in the ledger."""
    before = entity.attributes.get(key, "")
    entity.set_attribute(key, value)
    entity.world.ledger.record(call, entity, before={name: before}, after={name: value})
    argument = vim.event.ManagedEntityEventArgument(name=entity.display_name, entity=entity.ref)
    arguments = {"entity": argument, "fieldKey": key, "name": name, "value": value}
    entity.world.events.post(call, "CustomFieldValueChangedEvent", entity, own_fields=arguments)


def new_uuid(world: World) -> str:
    """A uuid drawn from the world's seed."""
    return str(UUID(int=world.rng.getrandbits(128), version=4))


def new_moid(world: World, prefix: str) -> str:
    """Return a managed object id that was not used before, such as `vm-1042`."""
    return f"{prefix}-{1000 + world.next_number()}"


def enter(vm: VmEntity) -> VmEntity:
    """Register a VM in the folder, host, pool and datastore that its state names, and return it."""
    world, state = vm.world, vm.state
    world.register(vm)
    vm.host().state.vms[vm.moid] = None
    vm.host().touch("vm")
    world.get(state.folder).add(vm)
    if state.pool is not None:
        world.get(state.pool).add(vm)
    vm.datastore().add(vm)
    vm.networks_changed()
    return vm


def enter_new(vm: VmEntity) -> VmEntity:
    """Register a new VM like `enter`, with free names for its files.

    If another VM on the datastore has files of that name, `_1`, `_2` and so on is added, as vCenter does.
    """
    name, number = vm.state.name, 0
    used_paths = {f"{other.state.home}.vmx" for other in vm.datastore().vms.values()}
    while f"{vm.state.home}.vmx" in used_paths:
        number += 1
        vm.state.files = f"{name}_{number}"
    return enter(vm)


def leave(vm: VmEntity) -> None:
    """Remove a VM from the inventory: folder, host, pool, datastore, cluster settings and networks."""
    world, state = vm.world, vm.state
    world.guests.forget(vm.moid)
    vm.host().state.vms.pop(vm.moid, None)
    vm.host().touch("vm")
    vm.host().load_changed()
    world.get(state.folder).remove(vm)
    if state.pool is not None:
        world.get(state.pool).remove(vm)
    vm.datastore().remove(vm)
    vm.datastore().use(-state.suspend_file_mib)  # frees the space of the suspend file
    vm.host().compute_resource().forget(vm.moid)
    for snapshot in state.snapshots:
        world.unregister(world.get(snapshot.moid))
    world.unregister(vm)
    vm.networks_changed()
