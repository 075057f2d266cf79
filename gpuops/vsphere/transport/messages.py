"""Writes text and object ids into requests, and checks replies before any parser reads them.

XML 1.0 cannot contain most control characters, and a parser reads a bare carriage return as a line feed (sections 2.2
and 2.11). Escaping "&", "<" and ">" is not enough: pyVmomi and the standard library do not escape the rest.

SOAP forbids document types, and so all entities (SOAP 1.1, section 3). Replies are checked as bytes, so the parser gets
a fixed encoding: in another one, "<!DOCTYPE" could have other bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from gpuops.errors import ProtocolError, UsageError
from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from lxml.etree import XMLParser

_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_UNWRITABLE_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")
_TYPE: Final = re.compile(r"[A-Za-z]{1,80}")

_PLAIN: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}"
_OF_A_SESSION: Final = r"session\[[0-9A-Fa-f-]{1,40}\]"
"""The prefix of ids of views, collectors and filters, which exist as long as the session."""

# pyVmomi writes the id into `_this` as it is, unescaped: anything else could carry elements of its own.
REFERENCE: Final = re.compile(f"(?:{_OF_A_SESSION})?{_PLAIN}")


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
    """Return the `_this` element of an object. Raises ProtocolError for invalid ids: they could contain elements."""
    if REFERENCE.fullmatch(moid) is None or _TYPE.fullmatch(kind) is None:
        raise ProtocolError(
            f"{moid[:80]!r} of {kind[:80]!r} is not the id of an object", hint="gpuops inventory shows the ids"
        )
    return f'<_this type="{kind}">{moid}</_this>'


def unwritable_surrogate() -> UsageError:
    """Return the error for a surrogate, which cannot be encoded."""
    return _unwritable("half a character")


def _unwritable(character: str) -> UsageError:
    return UsageError(
        f"a text contains {character}, which a request to vCenter cannot contain",
        hint="remove it from the name or password",
    )


ENCODING: Final = "utf-8"
MOST_MARKS: Final = 1_500_000
"""Each "<" and "=" of a reply may become an object of some hundred bytes. The largest pages of gpuops have a fifth of
this."""


MOST_TYPED: Final = 400_000
"""The limit for pyVmomi's parser, which takes ten times as long: a second, for a reply to a small request."""
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
    if attributes > _MOST_ATTRIBUTES + elements:  # one element with all of them costs lxml more than 256 MB
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
