"""Writes text and object ids into requests, checks replies before a parser reads them, and reads values from their XML.

XML 1.0 cannot contain most control characters, and a parser reads a bare carriage return as a line feed (sections 2.2
and 2.11). Escaping "&", "<" and ">" is not enough: pyVmomi and the standard library do not escape the rest.

SOAP forbids document types, and so all entities (SOAP 1.1, section 3). Replies are checked as bytes, so the parser gets
a fixed encoding: in another one, "<!DOCTYPE" could have other bytes.

Missing or ill-formed values are unknown (None): no function that reads a value raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from xml.sax.saxutils import escape

from gpuops.errors import ProtocolError, UsageError
from gpuops.model.devices.gpu import PciAddress
from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from lxml.etree import XMLParser

_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_UNWRITABLE_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")
_TYPE: Final = re.compile(r"[A-Za-z]{1,80}")

_MOID: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}"
_SESSION_PREFIX: Final = r"session\[[0-9A-Fa-f-]{1,40}\]"
"""It begins the ids of views, collectors and filters, which exist as long as the session."""

# pyVmomi does not escape the id in `_this`: any other text could add elements to a request.
REFERENCE: Final = re.compile(f"(?:{_SESSION_PREFIX})?{_MOID}")


def escape_text(text: str) -> str:
    """Return the text escaped for XML. Raises UsageError, without the text, if XML cannot contain it."""
    match = _UNWRITABLE.search(text)
    if match is not None:
        raise _unwritable(f"U+{ord(match[0]):04X}")
    return escape(text, {"\r": "&#13;"})


def checked_request(request: bytes) -> bytes:
    """Return a request of pyVmomi with escaped carriage returns. Raises UsageError for other control characters."""
    match = _UNWRITABLE_BYTES.search(request)
    if match is not None:
        raise _unwritable(f"U+{ord(match[0].decode()):04X}")
    return request.replace(b"\r", b"&#13;")  # its own markup has none


def reference(kind: str, moid: str) -> str:
    """Return the `_this` element of an object. Raises ProtocolError for an invalid id, which could contain elements."""
    if REFERENCE.fullmatch(moid) is None or _TYPE.fullmatch(kind) is None:
        raise ProtocolError(
            f"{moid[:80]!r} of {kind[:80]!r} is not the id of an object",
            hint="gpuops inventory --output json contains the ids",
        )
    return f'<_this type="{kind}">{moid}</_this>'


def unwritable_surrogate() -> UsageError:
    """Return the error for a surrogate, which cannot be encoded."""
    return _unwritable("a surrogate (half a character)")


def _unwritable(character: str) -> UsageError:
    return UsageError(
        f"a text contains {character}, which a request to vCenter cannot contain",
        hint="remove this character from the name or password",
    )


ENCODING: Final = "utf-8"
MOST_MARKS: Final = 1_500_000
"""Each "<" and "=" of a reply may become an object of some hundred bytes. The largest pages of gpuops have a fifth of
this."""


MOST_TYPED: Final = 400_000
"""The limit of marks for pyVmomi's parser, which takes ten times as long: a second, for a reply to a small request."""
TYPED_PER_MARK: Final = 100
"""Additional marks for each "<" of the request: a request about thousands of objects has a large reply."""
_MOST_NAMESPACES: Final = 20_000
_MOST_ATTRIBUTES: Final = 100_000


def typed_limit(request: bytes) -> int:
    """Return how many "<" and "=" pyVmomi's parser accepts in the reply: more for a larger request."""
    return min(MOST_MARKS, MOST_TYPED + TYPED_PER_MARK * request.count(b"<"))


def check_typed_reply(received: bytes, most: int) -> bytes:
    """Return the bytes if they are within the limits of pyVmomi's parser, in which namespaces are expensive.

    vCenter declares namespaces once in a reply, other servers once for each type. Raises UnreadableReply.
    """
    check_reply(received, most)
    if received.count(b"xmlns") > _MOST_NAMESPACES + received.count(b"<") // 2:
        raise UnreadableReply(f"more than {_MOST_NAMESPACES:,} namespaces in one reply")
    return received


def check_reply(received: bytes, most: int = MOST_MARKS) -> bytes:
    """Return the bytes unchanged. Raises UnreadableReply for a document type, or more than `most` "<" and "=".

    Elements of vCenter have at most two attributes.
    """
    if b"<!DOCTYPE" in received:
        raise UnreadableReply("a document type, which SOAP forbids")
    elements, attributes = received.count(b"<"), received.count(b"=")
    if elements + attributes > most:
        raise UnreadableReply(f"more than {most:,} elements and attributes in one reply")
    # lxml needs more than 256 MB for one element with very many attributes
    if attributes > _MOST_ATTRIBUTES + elements:
        raise UnreadableReply(f"more than {_MOST_ATTRIBUTES:,} attributes in one reply")
    return received


def expat_version() -> tuple[int, ...]:
    """Return the version of libexpat, with which pyVmomi parses replies."""
    import pyexpat

    return tuple(pyexpat.version_info)


def elements(received: bytes) -> Any:
    """Return the root element of a reply. Raises UnreadableReply."""
    from lxml import etree

    try:
        return etree.fromstring(check_reply(received), _parser())
    except etree.XMLSyntaxError as error:
        raise UnreadableReply(f"a reply that is not XML: {error.msg}") from error
    except MemoryError as error:
        raise UnreadableReply("a reply that does not fit into memory") from error


def _parser() -> XMLParser:
    """Return a parser without entities, DTDs and network access, within libxml2's limits: texts of 10 MB, 256 levels.

    A check for the 128 levels of `stub` would need XPath, and would take a third of the time of the parse.
    """
    from lxml import etree

    return etree.XMLParser(
        encoding=ENCODING,
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,  # SOAP has no xml:id attributes, and a table of them costs a tenth of the parse
    )


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
