"""Reads values from elements of vCenter's XML. Missing or ill-formed values are unknown (None); no function raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

from gpuops.errors import UsageError
from gpuops.model.devices.gpu import PciAddress

VIM: Final = "{urn:vim25}"
XSI_TYPE: Final = "{http://www.w3.org/2001/XMLSchema-instance}type"

MIB: Final = 1024 * 1024
_BEYOND_LONG: Final = 2**63

_VIM_LENGTH: Final = len(VIM)
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}

Vocabulary = TypeVar("Vocabulary", bound=StrEnum)


def child(element: Any, name: str) -> Any:
    """Return the first child of that name, or None."""
    if element is None:
        return None
    # not find(), which parses the name as a path on every call: the read of a fleet makes a million calls
    return next(element.iterchildren(VIM + name), None)


def children(element: Any, name: str = "*") -> Iterator[Any]:
    """Yield the children of that name; of any name by default."""
    if element is None:
        return iter(())
    child_elements: Iterator[Any] = element.iterchildren(VIM + name if name != "*" else "*")
    return child_elements


def descendants(element: Any, name: str) -> Iterator[Any]:
    """Yield the elements of that name at any depth; lxml makes no objects of others."""
    if element is None:
        return iter(())
    matches: Iterator[Any] = element.iter(VIM + name)
    return matches


def text(element: Any, name: str | None = None) -> str | None:
    """Return the text of an element, or of its child of that name; None for ''."""
    node = element if name is None else child(element, name)
    return (node.text or None) if node is not None else None


def count(element: Any, name: str) -> int:
    """Return the number of children of that name; libxml2 counts them without an object for each."""
    return int(_counter(name)(element))


@cache
def _counter(name: str) -> Any:
    from lxml import etree

    return etree.XPath(f"count(vim:{name})", namespaces={"vim": VIM[1:-1]})


def parts_of(element: Any) -> Mapping[str, Any]:
    """Return the children by name: cheaper than reading three of them. The last of several of one name counts."""
    return {} if element is None else {child_element.tag[_VIM_LENGTH:]: child_element for child_element in element}


def texts(element: Any) -> Mapping[str, str | None]:
    """Return the texts of the children by name, as `parts_of` has the children."""
    return {} if element is None else {child_element.tag[_VIM_LENGTH:]: child_element.text for child_element in element}


def whole(written: str | None) -> int | None:
    """Return the whole number of a text, or None. Numbers beyond 64 bits (xsd:long) are ill-formed."""
    try:
        integer = int(written) if written is not None else None
    except ValueError:
        return None
    return integer if integer is None or -_BEYOND_LONG <= integer < _BEYOND_LONG else None


def truth(written: str | None) -> bool | None:
    """Return the boolean that XML Schema writes as this text, or None."""
    return _TRUTH.get(written) if written is not None else None


def vocabulary_word(vocabulary: type[Vocabulary], written: str | None) -> Vocabulary | None:
    """Return the member of the vocabulary for a text, or None."""
    member: Vocabulary | None = _members(vocabulary).get(written) if written is not None else None
    return member


@cache  # a call of the enumeration costs ten times as much for a word that it does not have
def _members(vocabulary: type[StrEnum]) -> Mapping[str, Any]:
    return {member.value: member for member in vocabulary}


@lru_cache(maxsize=4096)
def pci_address(written: str | None) -> PciAddress | None:
    """Return the PCI address, or None. Cached: all hosts of a fleet have the same few addresses."""
    if not written:
        return None
    try:
        return PciAddress.parse(written)
    except UsageError:
        return None


def moment(written: str | None) -> datetime | None:
    """Return the moment in UTC, or None, also for one without a time zone."""
    try:
        local_time = datetime.fromisoformat(written) if written is not None else None
        return local_time.astimezone(UTC) if local_time is not None and local_time.tzinfo is not None else None
    except (ValueError, OverflowError):  # at the ends of the calendar another zone has no such year
        return None


def mebibytes(byte_count: int | None) -> int | None:
    return None if byte_count is None else byte_count // MIB


def kind(element: Any) -> str:
    """Return the vmomi type named by xsi:type, without its prefix."""
    return _local_name(element.get(XSI_TYPE, ""))


@lru_cache(maxsize=1024)
def _local_name(written: str) -> str:
    return written.rpartition(":")[2]


def unsigned_short(short: int | None) -> int:
    """Return the PCI id of vSphere's signed 16-bit field; 0 if unknown."""
    return (short or 0) & 0xFFFF
