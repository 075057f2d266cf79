"""Bulk reads over SOAP: requests as XML, pages parsed by lxml piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuops.errors import ProtocolError
from gpuops.vsphere.reading.bulk.pages import PAGE_OBJECTS, PathsByType, Piece, ReadObject, ReadStart, Traversal
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.messages import REFERENCE, check_reply, child, children, escape_text, kind, text
from gpuops.vsphere.transport.wire import SessionEnded, Wire, parse_reply

PIECE: Final = 384 * 1024
"""At least so many bytes of objects are parsed at a time; about thirty VMs. The tree, ten times the XML, then stays in
the processor's cache: whole pages cost a tenth more time and three times the memory."""

_LONGEST_AROUND: Final = 64 * 1024
"""The rest of a normal reply, without its objects, is a kilobyte."""

_FIRST_OBJECT: Final = re.compile(rb"<objects[\s>]")
_OBJECT_END: Final = b"</objects>"


class SoapPages:
    """Implements `Pages`, where each method is described."""

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire
        self._known_logins = session.logins
        """The number of logins when this object took its cookie; a higher one shows that another thread logged in."""

    @property
    def login(self) -> str:
        """The cookie."""
        return self._wire.cookie

    def log_in_again(self) -> None:
        self._wire.cookie = self._session.login_again(self._known_logins)
        self._known_logins = self._session.logins

    def new_view(self, types: Sequence[str]) -> str:
        service = self._session.service
        kind_of_root, root = service["rootFolder"]
        container = f'<container type="{kind_of_root}">{escape_text(root)}</container>'
        type_elements = "".join(f"<type>{name}</type>" for name in types)
        arguments = f"{container}{type_elements}<recursive>true</recursive>"
        return text(self._wire.ask("CreateContainerView", service["viewManager"], arguments), "returnval") or ""

    def first(self, paths_by_type: PathsByType, starts: Sequence[ReadStart], deadline: float) -> Iterator[Piece]:
        property_sets = "".join(_property_set(name, paths) for name, paths in paths_by_type.items())
        return self._page(
            "RetrievePropertiesEx",
            f"<specSet>{property_sets}{''.join(map(_object_set, starts))}"
            "<reportMissingObjectsInResults>true</reportMissingObjectsInResults></specSet>"
            f"<options><maxObjects>{PAGE_OBJECTS}</maxObjects></options>",
            deadline,
        )

    def next(self, token: str, deadline: float) -> Iterator[Piece]:
        return self._page("ContinueRetrievePropertiesEx", f"<token>{escape_text(token)}</token>", deadline)

    def _page(self, method: str, arguments: str, deadline: float) -> Iterator[Piece]:
        reply = self._wire.fetch(method, self._session.service["propertyCollector"], arguments, deadline=deadline)
        for piece in split_reply(check_reply(reply)):
            page = child(parse_reply(piece, self._session.target.address), "returnval")
            yield text(page, "token"), read_objects(page)


def split_reply(reply: bytes) -> Iterator[bytes]:
    """Yield the reply split into smaller replies: each has some of the objects, and all other text of the reply.

    In XML without comments, CDATA or a document type, "<" always begins a tag, so the reply can be cut there. A reply
    is not split if it has any of these, no objects, prefixed names, or much text outside of its objects.
    """
    first, last = _FIRST_OBJECT.search(reply), reply.rfind(_OBJECT_END)
    if first is None or last < 0 or b"<!" in reply:
        yield reply
        return
    head, tail = reply[: first.start()], reply[last + len(_OBJECT_END) :]
    if len(head) + len(tail) > _LONGEST_AROUND:
        yield reply  # each piece would be parsed with all of it
        return
    start, stop = first.start(), last + len(_OBJECT_END)
    while start < stop:
        # a piece ends with the first object that ends after PIECE bytes, or with the last object
        end = reply.find(_OBJECT_END, min(start + PIECE, last), stop) + len(_OBJECT_END)
        yield head + reply[start:end] + tail
        start = end


def read_objects(page: Any) -> Iterator[ReadObject]:
    """Yield the objects of a page, or of a part of it."""
    for object_element in children(page, "objects"):
        moref = child(object_element, "obj")
        if moref is None or not REFERENCE.fullmatch(moref.text or ""):
            raise ProtocolError("vCenter sends an object with an invalid id")
        # A property is its name, then its value (DynamicProperty, a sequence); an unset one may come without a value.
        # By position, because looking for them by name costs more than parsing the page did.
        properties = {
            property_element[0].text: property_element[1]
            for property_element in children(object_element, "propSet")
            if len(property_element) > 1
        }
        unreadable = _unreadable_paths(list(children(object_element, "missingSet")))
        yield ReadObject(moref.get("type", ""), moref.text, properties, unreadable)


def _unreadable_paths(missing: Sequence[Any]) -> tuple[str, ...]:
    if any(kind(child(child(missing_path, "fault"), "fault")) == "NotAuthenticated" for missing_path in missing):
        raise SessionEnded
    return tuple(path for missing_path in missing if (path := text(missing_path, "path")))


def _property_set(name: str, paths: Sequence[str]) -> str:
    path_elements = "".join(f"<pathSet>{path}</pathSet>" for path in paths)
    return f"<propSet><type>{name}</type><all>false</all>{path_elements}</propSet>"


def _object_set(start: ReadStart) -> str:
    selects = "".join(map(_select_set, start.selects))
    return f'<objectSet><obj type="{start.type}">{escape_text(start.ref)}</obj><skip>false</skip>{selects}</objectSet>'


def _select_set(select: Traversal | str) -> str:
    if isinstance(select, str):
        return f"<selectSet><name>{select}</name></selectSet>"
    return (
        f'<selectSet xsi:type="TraversalSpec"><name>{select.name}</name><type>{select.type}</type>'
        f"<path>{select.path}</path><skip>false</skip>{''.join(map(_select_set, select.then))}</selectSet>"
    )
