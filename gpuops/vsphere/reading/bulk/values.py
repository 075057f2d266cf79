"""Reads values of one bulk read, whichever way it came: lxml elements of SOAP, or what msgspec makes of VI/JSON.

The rules of decoding stand once, in `decode_host` and `decode_vm`, on the functions here. Both ways carry the same data
objects: XML writes every leaf as text and a list as elements of one name, VI/JSON has numbers, booleans and lists of
its own, the type of an object in `_typeName`, and in the place of xsd:anyType `{"_typeName": ..., "_value": ...}`
(Broadcom, Virtual Infrastructure JSON API, data structures; govmomi, vim25/types/json.go).

A leaf that is missing or ill-formed is None, unknown. What is no object where one belongs, or no list, is sent by no
vCenter: it raises one of `network.UNREADABLE_ERRORS`, for the `network.decoding` around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from gpuops.vsphere.transport import xml_values
from gpuops.vsphere.transport.network import UnreadableReply

BOXED: Final = "_value"
TYPE: Final = "_typeName"
_REFERENCE: Final = "ManagedObjectReference"
_BEYOND_LONG: Final = 2**63

Vocabulary = TypeVar("Vocabulary", bound=StrEnum)


def child(node: Any, name: str) -> Any:
    """The property of that name, or None."""
    if type(node) is dict:
        return node.get(name)
    return xml_values.child(node, name)


def children(node: Any, name: str) -> Iterator[Any]:
    """The items of the list of that name; a list that is not there has none."""
    if type(node) is dict:
        return iter(_require_list(node.get(name)))
    return xml_values.children(node, name)


def items(node: Any) -> Iterator[Any]:
    """The items of a property that is a list."""
    if node is None or type(node) is list:
        return iter(node or ())
    if type(node) is dict:
        raise UnreadableReply(f"a {kind(node)[:80]} where a list belongs")
    return xml_values.children(node)


def count(node: Any, name: str) -> int:
    """How many items the list of that name has."""
    return len(_require_list(node.get(name))) if type(node) is dict else xml_values.count(node, name)


def text(node: Any, name: str | None = None) -> str | None:
    """A text, or the id of a reference, or None; '' is nothing."""
    node_or_child = node if name is None else child(node, name)
    if node_or_child is None:
        return None
    found_type = type(node_or_child)
    if found_type is str:
        return node_or_child or None
    if found_type is dict:
        return _inside(node_or_child)
    if found_type in _LEAVES:
        return None
    return node_or_child.text or None


def number(node: Any, name: str | None = None) -> int | None:
    """A whole number, or None."""
    leaf = node if name is None else child(node, name)
    return whole(leaf if type(leaf) is int else text(leaf))


def flag(node: Any, name: str | None = None) -> bool | None:
    """A boolean, or None."""
    leaf = node if name is None else child(node, name)
    return leaf if type(leaf) is bool else xml_values.truth(text(leaf))


def word(vocabulary: type[Vocabulary], node: Any, name: str | None = None) -> Vocabulary | None:
    """A word of a vocabulary; one it does not have is None."""
    return xml_values.vocabulary_word(vocabulary, text(node, name))


def leaves(node: Any) -> Mapping[str, Any]:
    """The leaves of an object by name, for `leaf_text`, `whole` and `truth`: cheaper than asking for three of them."""
    return node if type(node) is dict else xml_values.texts(node)


def parts_of(node: Any) -> Mapping[str, Any]:
    """The properties of an object by name, in one pass."""
    return node if type(node) is dict else xml_values.parts_of(node)


def leaf_text(leaf: Any) -> str | None:
    """A leaf that is a text, or None; '' is nothing."""
    return (leaf or None) if type(leaf) is str else None


def whole(leaf: Any) -> int | None:
    """A leaf that is a whole number, or None. One that no vSphere type can hold is ill-formed (xsd:long: 64 bits)."""
    if type(leaf) is int:
        return leaf if -_BEYOND_LONG <= leaf < _BEYOND_LONG else None
    return xml_values.whole(leaf) if type(leaf) is str else None


def truth(leaf: Any) -> bool | None:
    """A leaf that is a boolean, or None."""
    return leaf if type(leaf) is bool else xml_values.truth(leaf_text(leaf))


def leaves_by_name(node: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Of each object in a list that has a leaf of that name: the leaf, and what `leaf_owner` makes the object of.

    Of XML only these leaves become objects of Python: a host has sixty PCI devices, a VM fifty options.
    """
    if node is None or type(node) is list:
        return ((leaf, owner_object) for owner_object in node or () if (leaf := owner_object.get(name)) is not None)
    return ((owner_object.text, owner_object) for owner_object in xml_values.descendants(node, name))


def leaf_owner(leaf: Any) -> Any:
    """The object that `leaves_by_name` found the leaf in."""
    return leaf if type(leaf) is dict else leaf.getparent()


def kind(node: Any) -> str:
    """The vmomi type of an object, or ''."""
    return (leaf_text(node.get(TYPE)) or "") if type(node) is dict else xml_values.kind(node)


_LEAVES: Final = frozenset({int, bool, float, list})


def _inside(node: Mapping[str, Any]) -> str | None:
    """The id of a reference; what is in a box, as XML would write it. An object is no text."""
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
    """The texts of the elements that are called so; those without text are left out."""
    return tuple([element_text for element in children(node, name) if (element_text := text(element))])
