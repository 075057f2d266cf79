"""Checks replies before any parser reads them, and parses them with lxml.

SOAP forbids document types, and with them go entities, external ones too (SOAP 1.1, section 3). The checks are on
bytes, so the parser is told the encoding: one that a reply declares could write "<!DOCTYPE" in other bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from lxml.etree import XMLParser

ENCODING: Final = "utf-8"
MOST_MARKS: Final = 1_500_000
"""Each "<" and "=" of a reply may become an object of some hundred bytes. The largest pages that we ask for have a
fifth of this."""


MOST_TYPED: Final = 400_000
"""The same for pyVmomi's parser, which takes ten times as long: a second, for any reply to a small request."""
TYPED_PER_MARK: Final = 100
"""And so many more for each "<" of a request: whoever asks about thousands of objects is answered about thousands."""
_MOST_NAMESPACES: Final = 20_000
_MOST_ATTRIBUTES: Final = 100_000


def typed_limit(request: bytes) -> int:
    """How many marks an answer to this request may have for pyVmomi's parser."""
    return min(MOST_MARKS, MOST_TYPED + TYPED_PER_MARK * request.count(b"<"))


def check_typed_reply(received: bytes, most: int) -> bytes:
    """The same bytes, fit for pyVmomi's parser, to which namespaces cost more than elements do.

    vCenter declares namespaces once a reply; other servers one for each type that they name. Raises UnreadableReply.
    """
    check_reply(received, most)
    if received.count(b"xmlns") > _MOST_NAMESPACES + received.count(b"<") // 2:
        raise UnreadableReply(f"more than {_MOST_NAMESPACES:,} namespaces in one reply")
    return received


def check_reply(received: bytes, most: int = MOST_MARKS) -> bytes:
    """The same bytes, fit for a parser: no element of vCenter has more than two attributes. Raises UnreadableReply."""
    if b"<!DOCTYPE" in received:
        raise UnreadableReply("a document type, which SOAP forbids")
    elements, attributes = received.count(b"<"), received.count(b"=")
    if elements + attributes > most:
        raise UnreadableReply(f"more than {most:,} elements and attributes in one reply")
    if attributes > _MOST_ATTRIBUTES + elements:  # one element with all of them costs lxml more than 256 MB
        raise UnreadableReply(f"more than {_MOST_ATTRIBUTES:,} attributes in one reply")
    return received


def expat_version() -> tuple[int, ...]:
    """The version of the libexpat that pyVmomi's replies are read with."""
    import pyexpat

    return tuple(pyexpat.version_info)


def elements(received: bytes) -> Any:
    """The root element of a reply, as lxml has it. Raises UnreadableReply."""
    from lxml import etree

    try:
        return etree.fromstring(check_reply(received), _parser())
    except etree.XMLSyntaxError as error:
        raise UnreadableReply(f"a reply that is not XML: {error.msg}") from error
    except MemoryError as error:
        raise UnreadableReply("a reply that does not fit into memory") from error


def _parser() -> XMLParser:
    """A parser that resolves no entity, loads no DTD, reaches no network and keeps libxml2's limits: texts of 10 MB,
    and 256 elements within each other. To hold it to the 128 of `stub` would cost a third of a parse, in XPath."""
    from lxml import etree

    return etree.XMLParser(
        encoding=ENCODING,
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,  # no table of xml:id attributes, which SOAP has none of and which costs a tenth of a parse
    )
