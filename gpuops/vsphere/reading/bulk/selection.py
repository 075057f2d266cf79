"""The start objects and traversals of a bulk read: PropertyFilterSpec.objectSet as values.

`soap_pages` and `json_pages` encode them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Traversal:
    """A TraversalSpec: from objects of a type along a property; `then` are further traversals or names of others."""

    name: str
    type: str
    path: str
    then: tuple[Traversal | str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """An ObjectSpec: an object to read, and the traversals from it."""

    type: str
    ref: str
    selects: tuple[Traversal, ...] = ()


_TASKS_OF_VM: Final = Traversal("tasks", "VirtualMachine", "recentTask")
_DATASTORES_OF_VM: Final = Traversal("datastores", "VirtualMachine", "datastore")
_PLACES_ABOVE: Final = (
    Traversal("above", "ManagedEntity", "parent", ("above",)),
    Traversal("vapp", "VirtualMachine", "parentVApp", ("above", "folder")),
    Traversal("folder", "VirtualApp", "parentFolder", ("above",)),
)
AROUND_VMS: Final = frozenset({"Task", "Folder", "Datacenter", "VirtualApp", "Datastore"})
"""Types of objects around a VM that can be read with it."""


def view_start(view: str, with_tasks: bool) -> ReadStart:
    """Return the start for a view and all its objects, and for the recent tasks of its VMs."""
    tasks = (_TASKS_OF_VM,) if with_tasks else ()
    return ReadStart("ContainerView", view, (Traversal("view", "ContainerView", "view", tasks),))


def plain_start(type_name: str, ref: str, around: Collection[str] = ()) -> ReadStart:
    """Return the start for one object, and for the objects around it if it is a VM."""
    selects: tuple[Traversal, ...] = ()
    if type_name == "VirtualMachine":
        selects += (_TASKS_OF_VM,) if "Task" in around else ()
        selects += _PLACES_ABOVE if "Folder" in around else ()
        selects += (_DATASTORES_OF_VM,) if "Datastore" in around else ()
    return ReadStart(type_name, ref, selects)
