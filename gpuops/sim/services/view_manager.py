"""The ViewManager object and its views: lists of objects that a property collector starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.inventory_tree import members
from gpuops.sim.core.managed_object import ManagedObject, Properties, method, prop
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.inventory import faults

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

CONTAINERS: Final = ("Folder", "Datacenter", "ComputeResource", "ResourcePool", "HostSystem")
"""The types that a ContainerView may have as its container (vSphere API reference, ViewManager.CreateContainerView)."""


class View(ManagedObject):
    """What all views share: they belong to a session, and list objects."""

    wsdl_name = "View"
    volatile = True
    world: World

    def __init__(self, world: World, session: ClientSession) -> None:
        super().__init__(world, session.unique_moid())
        self.session = session
        session.add(self)

    @method
    def DestroyView(self, call: Call) -> None:
        self.session.remove(self)


class ManagedObjectView(View):
    """A view with a `view` property."""

    wsdl_name = "ManagedObjectView"

    @prop("view")
    def viewed_objects(self) -> list[ManagedObject]:
        """The objects in the view."""
        raise NotImplementedError


class ContainerView(ManagedObjectView):
    """All objects of some types below a container; it follows the inventory."""

    wsdl_name = "ContainerView"

    property_table: ClassVar[Properties] = {
        "container": lambda self: self.container,
        "type": lambda self: VmomiSupport.GetVmodlType("string[]")(self.types),
        "recursive": lambda self: self.recursive,
    }

    def __init__(
        self, world: World, session: ClientSession, container: ManagedObject, types: tuple[str, ...], *, recursive: bool
    ) -> None:
        super().__init__(world, session)
        self.container = container
        self.types = types
        self.recursive = recursive
        self._epoch = -1
        self._members: dict[str, ManagedObject] = {}

    def refresh(self) -> None:
        """Find the members again if the inventory has changed, and touch `view` if they differ."""
        epoch = self.world.registry.structure_epoch
        if epoch == self._epoch:
            return
        self._epoch = epoch
        before = self._members.keys()
        self._members = members(self.container, self.types, recursive=self.recursive)
        if before != self._members.keys():
            self.touch("view")

    def viewed_objects(self) -> list[ManagedObject]:
        self.refresh()
        return list(self._members.values())


class ListView(ManagedObjectView):
    """A list that the client keeps."""

    wsdl_name = "ListView"

    def __init__(self, world: World, session: ClientSession) -> None:
        super().__init__(world, session)
        self._members: dict[str, ManagedObject] = {}

    def viewed_objects(self) -> list[ManagedObject]:
        return [
            managed_object
            for managed_object in self._members.values()
            if self.world.find(managed_object.moid) is managed_object
        ]

    def add(self, references: Any) -> list[Any]:
        """Add the objects, and return the references to objects that do not exist."""
        unresolved = []
        for reference in references:
            managed_object = self.session.objects.find(reference._moId) or self.world.find(reference._moId)
            if managed_object is None or not isinstance(managed_object.ref, type(reference)):
                unresolved.append(reference)
            else:
                self._members[managed_object.moid] = managed_object
        self.touch("view")
        return unresolved

    @method
    def ModifyListView(self, call: Call, add: Any, remove: Any) -> list[Any]:
        for reference in remove:
            self._members.pop(reference._moId, None)
        return self.add(add)

    @method
    def ResetListView(self, call: Call, obj: Any) -> list[Any]:
        self._members.clear()
        return self.add(obj)


class ViewManager(ManagedObject):
    """Makes views for the calling session."""

    wsdl_name = "ViewManager"
    volatile = True
    world: World

    @prop("viewList")
    def _view_list(self) -> list[ManagedObject]:
        session = self.world.current_call.session if self.world.current_call else None
        return (
            []
            if session is None
            else [managed_object for managed_object in session.objects if isinstance(managed_object, View)]
        )

    @method
    def CreateContainerView(self, call: Call, container: Any, type: list[Any], recursive: bool) -> ContainerView:
        names = tuple(VmomiSupport.GetWsdlName(type_name) for type_name in type)
        container_object = self.world.get(container)
        if not any(is_kind_of(container_object.wsdl_name, kind) for kind in CONTAINERS):
            raise faults.wrong_argument("container")
        if not all(is_kind_of(name, "ManagedEntity") for name in names):
            raise faults.wrong_argument("type")  # a list of managed entity types (vSphere API, CreateContainerView)
        return ContainerView(self.world, _session(call), container_object, names, recursive=recursive)

    @method
    def CreateListView(self, call: Call, obj: Any) -> ListView:
        view = ListView(self.world, _session(call))
        view.add(obj)
        return view


def _session(call: Call) -> ClientSession:
    if call.session is None:
        raise vmodl.fault.InvalidRequest(msg="A view can only be made in a session: log in first.")
    return call.session
