"""What `reader` needs of a wire for bulk reads: pages of RetrievePropertiesEx, and the container views for them.

`soap_pages` and `json_pages` implement `Pages`, and encode the start objects and traversals of a read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpuops.model.vcenter.inventory import decode_name
from gpuops.vsphere.reading.bulk.values import text


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


PAGE_OBJECTS: Final = 250
"""Larger pages save round trips, and cost memory and time in the parser: its tree is ten times the page."""

PathsByType = Mapping[str, Sequence[str]]
"""Property paths by managed object type."""


@dataclass(frozen=True, slots=True)
class ReadObject:
    """One object of a reply: its properties by path, as `values` reads them, and the paths this login cannot read."""

    type: str
    ref: str
    properties: Mapping[str, Any]
    unreadable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its real name, or its id where the name could not be read."""
        return decode_name(text(self.properties.get("name")) or self.ref)


Piece = tuple[str | None, Iterator[ReadObject]]
"""A part of a page: the token of the next page (None = this is the last one), and its objects, decoded lazily."""


class Pages(Protocol):
    """Bulk reads over one wire, in one login."""

    @property
    def login(self) -> str:
        """The key of the login, to which views belong."""
        ...

    def log_in_again(self) -> None:
        """Log in again after the session ended. Raises NotConnected and its subclasses."""
        ...

    def new_view(self, types: Sequence[str]) -> str:
        """Return the id of a new container view of these types below the root.

        Raises SessionEnded, WireFault, NotConnected and its subclasses.
        """
        ...

    def first(self, paths_by_type: PathsByType, starts: Sequence[ReadStart], deadline: float) -> Iterator[Piece]:
        """Receive the first page and yield its pieces; the caller iterates within `network.decoding`."""
        ...

    def next(self, token: str, deadline: float) -> Iterator[Piece]:
        """Yield the page that the token names."""
        ...
