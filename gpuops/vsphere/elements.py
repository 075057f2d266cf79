"""Elements: values out of vCenter's XML. What is missing or ill-formed is None, unknown; nothing here raises."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from lxml.etree import XMLParser

VIM: Final = "{urn:vim25}"
XSI_TYPE: Final = "{http://www.w3.org/2001/XMLSchema-instance}type"

MIB: Final = 1024 * 1024

Vocabulary = TypeVar("Vocabulary", bound=StrEnum)


def safe_parser() -> XMLParser:
    """A parser that resolves no entity, loads no DTD, reaches no network and keeps lxml's limits on size and depth."""
    from lxml import etree

    return etree.XMLParser(
        resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False, remove_comments=True, remove_pis=True
    )


def child(element: Any, name: str) -> Any:
    """The first child of that name, or None."""
    return None if element is None else element.find(VIM + name)


def children(element: Any, name: str = "*") -> Iterator[Any]:
    """The children of that name; of any name by default."""
    return iter(()) if element is None else element.iterfind(VIM + name if name != "*" else "*")


def text(element: Any, name: str | None = None) -> str | None:
    """The text of an element, or of its child of that name; '' is nothing."""
    found = element if name is None else child(element, name)
    return (found.text or None) if found is not None else None


def number(element: Any, name: str | None = None) -> int | None:
    """A whole number, or None."""
    written = text(element, name)
    try:
        return int(written) if written is not None else None
    except ValueError:
        return None


def flag(element: Any, name: str | None = None) -> bool | None:
    """A boolean, or None."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text(element, name) or "")


def word(vocabulary: type[Vocabulary], element: Any, name: str | None = None) -> Vocabulary | None:
    """A word of a vocabulary; one it does not have is None."""
    written = text(element, name)
    try:
        return vocabulary(written) if written is not None else None
    except ValueError:
        return None


def mebibytes(byte_count: int | None) -> int | None:
    return None if byte_count is None else byte_count // MIB


def kind(element: Any) -> str:
    """The vmomi type named by xsi:type, without its prefix."""
    return str(element.get(XSI_TYPE, "")).rpartition(":")[2]


def unsigned(short: int | None) -> int:
    """A PCI id as people know it, from vSphere's signed 16-bit field; 0 when unknown."""
    return (short or 0) & 0xFFFF
