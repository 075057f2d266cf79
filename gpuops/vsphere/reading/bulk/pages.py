"""Hides from readers and decoders whether a bulk read uses SOAP or VI/JSON: the pages of a read, and their values.

`Pages` is one wire: pages of RetrievePropertiesEx, and the container views for them. `soap_pages` and `json_pages`
implement it, and encode the start objects and traversals of a read.

The functions read a value from an lxml element (SOAP) or from a dict or list of msgspec (VI/JSON), so that
`decode_host` and `decode_vm` are the same for both. XML has text in every leaf, and a list is several elements of one
name. VI/JSON has numbers, booleans and lists, the type of an object in `_typeName`, and
`{"_typeName": ..., "_value": ...}` for xsd:anyType (Broadcom, Virtual Infrastructure JSON API, data structures;
govmomi, vim25/types/json.go).

A missing or ill-formed leaf yields None: unknown. Another type in place of an object or list raises one of
`network.UNREADABLE_ERRORS`, for the `network.decoding` around it: no vCenter sends that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from gpuops.model.vcenter.inventory import decode_name
from gpuops.vsphere.transport import messages
from gpuops.vsphere.transport.network import UnreadableReply

BOXED: Final = "_value"
TYPE: Final = "_typeName"
_REFERENCE: Final = "ManagedObjectReference"
_BEYOND_LONG: Final = 2**63

Vocabulary = TypeVar("Vocabulary", bound=StrEnum)


def child(node: Any, name: str) -> Any:
    """Return the property of that name, or None."""
    if type(node) is dict:
        return node.get(name)
    return messages.child(node, name)


def children(node: Any, name: str) -> Iterator[Any]:
    """Yield the items of the list of that name; nothing if the list is missing."""
    if type(node) is dict:
        return iter(_require_list(node.get(name)))
    return messages.children(node, name)


def items(node: Any) -> Iterator[Any]:
    """Yield the items of a property that is a list."""
    if node is None or type(node) is list:
        return iter(node or ())
    if type(node) is dict:
        raise UnreadableReply(f"a {kind(node)[:80]} where a list belongs")
    return messages.children(node)


def count(node: Any, name: str) -> int:
    """Return how many items the list of that name has."""
    return len(_require_list(node.get(name))) if type(node) is dict else messages.count(node, name)


def text(node: Any, name: str | None = None) -> str | None:
    """Return the text of the node, or of its property `name`; for a reference, its id. None for '' and other values."""
    node_or_child = node if name is None else child(node, name)
    if node_or_child is None:
        return None
    node_type = type(node_or_child)
    if node_type is str:
        return node_or_child or None
    if node_type is dict:
        return _reference_or_boxed_text(node_or_child)
    if node_type in _TYPES_WITHOUT_TEXT:
        return None
    return node_or_child.text or None  # an XML element


def number(node: Any, name: str | None = None) -> int | None:
    """Return a whole number, or None."""
    leaf = node if name is None else child(node, name)
    return whole(leaf if type(leaf) is int else text(leaf))


def flag(node: Any, name: str | None = None) -> bool | None:
    """Return a boolean, or None."""
    leaf = node if name is None else child(node, name)
    return leaf if type(leaf) is bool else messages.truth(text(leaf))


def word(vocabulary: type[Vocabulary], node: Any, name: str | None = None) -> Vocabulary | None:
    """Return the member of the vocabulary, or None for another word."""
    return messages.vocabulary_word(vocabulary, text(node, name))


def leaves(node: Any) -> Mapping[str, Any]:
    """Return the leaves of an object by name, for `leaf_text`, `whole` and `truth`: cheaper than three single reads."""
    return node if type(node) is dict else messages.texts(node)


def parts_of(node: Any) -> Mapping[str, Any]:
    """Return the properties of an object by name, in one pass."""
    return node if type(node) is dict else messages.parts_of(node)


def leaf_text(leaf: Any) -> str | None:
    """Return the text of a leaf; None for '' and for anything else."""
    return (leaf or None) if type(leaf) is str else None


def whole(leaf: Any) -> int | None:
    """Return the whole number of a leaf, or None. Numbers beyond 64 bits (xsd:long) are ill-formed."""
    if type(leaf) is int:
        return leaf if -_BEYOND_LONG <= leaf < _BEYOND_LONG else None
    return messages.whole(leaf) if type(leaf) is str else None


def truth(leaf: Any) -> bool | None:
    """Return the boolean of a leaf, or None."""
    return leaf if type(leaf) is bool else messages.truth(leaf_text(leaf))


def leaves_by_name(node: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield the leaf of that name of each object in a list, and a handle from which `leaf_owner` returns the object.

    With XML only these leaves become Python objects: a host has sixty PCI devices, a VM fifty options.
    """
    if node is None or type(node) is list:
        return ((leaf, owner_object) for owner_object in node or () if (leaf := owner_object.get(name)) is not None)
    return ((owner_object.text, owner_object) for owner_object in messages.descendants(node, name))


def leaf_owner(leaf: Any) -> Any:
    """Return the object that `leaves_by_name` found the leaf in."""
    return leaf if type(leaf) is dict else leaf.getparent()


def kind(node: Any) -> str:
    """Return the vmomi type of an object, or ''."""
    return (leaf_text(node.get(TYPE)) or "") if type(node) is dict else messages.kind(node)


_TYPES_WITHOUT_TEXT: Final = frozenset({int, bool, float, list})


def _reference_or_boxed_text(node: Mapping[str, Any]) -> str | None:
    """Return the id of a reference, or the boxed value as XML would write it; None for other objects."""
    if node.get(TYPE) == _REFERENCE:
        return leaf_text(node.get("value"))
    boxed = node.get(BOXED)
    if type(boxed) is bool:
        return str(boxed).lower()
    return str(boxed) if type(boxed) is int else leaf_text(boxed)


def _require_list(node: Any) -> Sequence[Any]:
    if node is None or type(node) is list:
        return node or ()
    raise UnreadableReply(f"a {type(node).__name__} where a list belongs")


def texts(node: Any, name: str) -> tuple[str, ...]:
    """Return the texts of the elements of that name, without empty ones."""
    return tuple([element_text for element in children(node, name) if (element_text := text(element))])


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


def object_start(type_name: str, ref: str, around: Collection[str] = ()) -> ReadStart:
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
