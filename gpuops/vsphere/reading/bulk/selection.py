"""Which objects a bulk read begins with, and where it goes from them: PropertyFilterSpec.objectSet as values.

`soap_pages` and `json_pages` write them as their wire has them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Traversal:
    """A TraversalSpec: from objects of a type along a property; `then` are further ones, or names of some above."""

    name: str
    type: str
    path: str
    then: tuple[Traversal | str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """An ObjectSpec: an object that is read itself, and where the read goes on from it."""

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
"""Types of what is around a VM, and read with it where it is wanted."""


def view_start(view: str, with_tasks: bool) -> ReadStart:
    """The view itself and all that it shows, with the tasks that its VMs list as recent."""
    tasks = (_TASKS_OF_VM,) if with_tasks else ()
    return ReadStart("ContainerView", view, (Traversal("view", "ContainerView", "view", tasks),))


def plain_start(type_name: str, ref: str, around: Collection[str] = ()) -> ReadStart:
    """One object, and of a VM what is around it."""
    selects: tuple[Traversal, ...] = ()
    if type_name == "VirtualMachine":
        selects += (_TASKS_OF_VM,) if "Task" in around else ()
        selects += _PLACES_ABOVE if "Folder" in around else ()
        selects += (_DATASTORES_OF_VM,) if "Datastore" in around else ()
    return ReadStart(type_name, ref, selects)
