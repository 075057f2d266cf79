"""Bulk reads of properties with RetrievePropertiesEx, parsed by lxml and not by pyVmomi; `collect` calls it.

One container view holds all objects; its pages come over a connection of their own, and each is parsed and released
before the next is requested. Measured beside pyVmomi's deserialiser in tests/bench.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gpuops import clock
from gpuops.errors import ProtocolError
from gpuops.vsphere.faults import named
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.reply import checked
from gpuops.vsphere.transport.request_text import REFERENCE, written
from gpuops.vsphere.transport.wire import SessionEnded, Wire, WireFault, parsed
from gpuops.vsphere.transport.xml_values import child, children, kind, text

DEADLINE_S: Final = 600
"""For one read, all its pages together, whatever the server sends and however slowly."""
PAGE_OBJECTS: Final = 250
"""Larger pages save round trips, and cost memory and time in the parser: its tree is ten times the page."""
MOST_IN_A_PAGE: Final = 20_000
"""Objects in one reply of a server that does not keep to the pages that were asked for."""
MOST_OBJECTS: Final = 1_000_000
"""In one read of a whole vCenter: ten times the VMs of the largest fleet."""
MOST_AROUND: Final = 200
"""Recent tasks, places above and datastores of one VM; vCenter lists a few of each."""

PIECE: Final = 384 * 1024
"""At least so many bytes of objects are parsed at a time; about thirty VMs. The tree, ten times the XML, then stays in
the processor's cache: whole pages cost a tenth more time and three times the memory (`make bench`, read)."""

_LONGEST_AROUND: Final = 64 * 1024
"""What stands in an honest reply beside its objects is a kilobyte."""

_FIRST: Final = re.compile(rb"<objects[\s>]")
_END: Final = b"</objects>"


@dataclass(frozen=True, slots=True)
class ReadObject:
    """One object of a reply: its properties' XML by path, and the paths that this login could not read."""

    type: str
    ref: str
    properties: Mapping[str, Any]
    unreadable: tuple[str, ...] = ()


Wanted = Mapping[str, Sequence[str]]
"""Property paths by managed object type."""


Record = TypeVar("Record")
Answer = TypeVar("Answer")


@contextmanager
def reading(session: Session) -> Iterator[Reader]:
    """A reader with a connection of its own for the `with` block."""
    with session.wire() as wire:
        yield Reader(session, wire)


class Reader:
    """Bulk reads of one session, on one of its connections."""

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire

    def read_all(
        self, wanted: Wanted, decode: Callable[[ReadObject], Record], beside: Collection[tuple[str, str]] = ()
    ) -> list[Record]:
        """What `decode` makes of every object of these types below the root, of the tasks VMs list as recent, and of
        the objects (type, id) named `beside` them.

        `decode` must keep nothing of the XML: it dies with its page. Raises NotConnected in its kinds.
        """
        return self._bulk(lambda: self._through_a_view(wanted, decode, beside))

    def read_named(
        self, wanted: Wanted, refs: Iterable[tuple[str, str]], decode: Callable[[ReadObject], Record]
    ) -> list[Record]:
        """What `decode` makes of the named (type, id) objects; one that is gone is left out.

        With VMs come what of `AROUND_VMS` is wanted too: their recent tasks, the places above them, their datastores.
        """
        objects = list(refs)
        found: list[Record] = []
        for start in range(0, len(objects), PAGE_OBJECTS):
            page = objects[start : start + PAGE_OBJECTS]
            found += self._bulk(functools.partial(self._named, wanted, page, decode))
        return found

    def call(self, method: str, this: tuple[str, str], arguments: str = "") -> Any:
        """The response element of one read. Raises the error of its fault, or NotConnected in its kinds."""
        try:
            return self._again_if_ended(lambda: self._wire.ask(method, this, arguments))
        except WireFault as fault:
            raise named(fault.fault, f"{method}: {fault}") from fault

    def _bulk(self, read: Callable[[], Answer]) -> Answer:
        try:
            return self._again_if_ended(read)
        except WireFault as fault:
            address = self._session.target.address
            raise ProtocolError(f"{address} refuses a bulk read: {fault.fault or 'fault'}: {fault}") from fault

    def _through_a_view(
        self, wanted: Wanted, decode: Callable[[ReadObject], Record], beside: Collection[tuple[str, str]]
    ) -> list[Record]:
        outside = {"Task", *(name for name, _ in beside)}
        types = "".join(f"<type>{name}</type>" for name in wanted if name not in outside)
        # A view belongs to its login, whose cookie stays the same, and shows at each read what is there by then.
        views, mine = self._session.idle_views, (self._wire.cookie, types)
        view = views.pop(mine, "") or self._new_view(types)
        # The view itself is read too: it is ours, so a reply without it is not the answer to this read, where one
        # without any other object could be that of an empty vCenter.
        with_view = {**wanted, "ContainerView": ("container",)}
        seen: list[str] = []

        def record(found: ReadObject) -> Record | None:
            if found.type != "ContainerView":
                return decode(found)
            seen.append(found.ref)
            return None

        objects = _view_object(view, "Task" in wanted) + "".join(_plain_object(*each, ()) for each in beside)
        records = self._pages(with_view, objects, record, MOST_OBJECTS)
        if seen != [view]:
            raise ProtocolError(
                f"{self._session.target.address} answers a read of its inventory without the view that was read",
                hint="check the address; nothing of it was used",
            )
        views[mine] = view
        return [each for each in records if each is not None]

    def _new_view(self, types: str) -> str:
        service = self._session.service
        kind_of_root, root = service["rootFolder"]
        container = f'<container type="{kind_of_root}">{written(root)}</container>{types}<recursive>true</recursive>'
        made = child(self._wire.ask("CreateContainerView", service["viewManager"], container), "returnval")
        return (made.text or "") if made is not None else ""

    def _named(
        self, wanted: Wanted, page: Iterable[tuple[str, str]], decode: Callable[[ReadObject], Record]
    ) -> list[Record]:
        asked = list(page)
        refs, around = {ref for _, ref in asked}, AROUND_VMS.intersection(wanted)
        objects = "".join(_plain_object(*each, around) for each in asked)
        most = len(refs) * (1 + MOST_AROUND) if around else len(refs)
        return self._pages(wanted, objects, lambda each: decode(_asked_for(each, refs, around)), most)

    def _again_if_ended(self, read: Callable[[], Answer]) -> Answer:
        seen = self._session.logins
        try:
            return read()
        except SessionEnded:
            self._wire.cookie = self._session.login_again(seen)
        try:
            return read()
        except SessionEnded as ended:
            raise ProtocolError("vCenter ends the session as soon as it begins", hint="look at its vpxd log") from ended

    def _pages(
        self, wanted: Wanted, object_set: str, decode: Callable[[ReadObject], Record], most: int
    ) -> list[Record]:
        """What `decode` makes of the objects of all pages. Raises ProtocolError for more than `most` of them."""
        deadline, address, records = clock.passed_s() + DEADLINE_S, self._session.target.address, list[Record]()
        collector = self._session.service["propertyCollector"]
        property_sets = "".join(_property_set(name, paths) for name, paths in wanted.items())
        reply = self._wire.fetch(
            "RetrievePropertiesEx",
            collector,
            f"<specSet>{property_sets}{object_set}"
            "<reportMissingObjectsInResults>true</reportMissingObjectsInResults></specSet>"
            f"<options><maxObjects>{PAGE_OBJECTS}</maxObjects></options>",
            deadline=deadline,
        )
        while True:
            token: str | None = None
            before = len(records)
            with network.decoding(address, "a bulk read"):
                for piece in split_reply(checked(reply)):
                    page = child(parsed(piece, address), "returnval")
                    token = text(page, "token")
                    records += map(decode, _objects(page))
                    if len(records) > min(most, before + MOST_IN_A_PAGE):
                        raise network.UnreadableReply(f"more than {min(most, MOST_IN_A_PAGE):,} objects")
                if token is not None and len(records) == before:
                    raise network.UnreadableReply("pages without an object, one after the other")
            if token is None:
                return records
            more = f"<token>{written(token)}</token>"
            reply = self._wire.fetch("ContinueRetrievePropertiesEx", collector, more, deadline=deadline)


def split_reply(reply: bytes) -> Iterator[bytes]:
    """The reply split into smaller replies: each object is in one of them, and what else the reply holds is in all.

    In XML without comments, CDATA or a document type a "<" begins a tag and nothing else, so the cut is where it seems
    to be. A reply with any of these, without objects, or with names in another form, or much beside them, is one piece.
    """
    first, last = _FIRST.search(reply), reply.rfind(_END)
    if first is None or last < 0 or b"<!" in reply:
        yield reply
        return
    head, tail = reply[: first.start()], reply[last + len(_END) :]
    if len(head) + len(tail) > _LONGEST_AROUND:
        yield reply  # each piece would be parsed with all of it
        return
    start, stop = first.start(), last + len(_END)
    while start < stop:
        end = reply.find(_END, min(start + PIECE, last), stop) + len(_END)
        yield head + reply[start:end] + tail
        start = end


def _asked_for(found: ReadObject, refs: Collection[str], around: Collection[str]) -> ReadObject:
    """The same, if it is one of these, or of a type that is asked for around them. Raises ProtocolError."""
    if found.ref not in refs and found.type not in around:
        raise ProtocolError(f"vCenter answers with {found.type} {found.ref}, which it was not asked for")
    return found


def _objects(page: Any) -> Iterator[ReadObject]:
    for each in children(page, "objects"):
        moref = child(each, "obj")
        if moref is None or not REFERENCE.fullmatch(moref.text or ""):
            raise ProtocolError("vCenter names an object in a way that no vCenter does")
        # A property is its name, then its value (DynamicProperty, a sequence); an unset one may come without a value.
        # By position, because looking for them by name costs more than parsing the page did.
        properties = {one[0].text: one[1] for one in children(each, "propSet") if len(one) > 1}
        yield ReadObject(moref.get("type", ""), moref.text, properties, _unreadable(list(children(each, "missingSet"))))


def _unreadable(missing: Sequence[Any]) -> tuple[str, ...]:
    if not missing:
        return ()
    if any(kind(child(child(one, "fault"), "fault")) == "NotAuthenticated" for one in missing):
        raise SessionEnded
    return tuple(path for one in missing if (path := text(one, "path")))


def _property_set(name: str, paths: Sequence[str]) -> str:
    listed = "".join(f"<pathSet>{path}</pathSet>" for path in paths)
    return f"<propSet><type>{name}</type><all>false</all>{listed}</propSet>"


_TASKS_OF_VM: Final = (
    '<selectSet xsi:type="TraversalSpec"><name>tasks</name><type>VirtualMachine</type>'
    "<path>recentTask</path><skip>false</skip></selectSet>"
)


_PLACES_ABOVE: Final = (
    '<selectSet xsi:type="TraversalSpec"><name>above</name><type>ManagedEntity</type><path>parent</path>'
    "<skip>false</skip><selectSet><name>above</name></selectSet></selectSet>"
    '<selectSet xsi:type="TraversalSpec"><name>vapp</name><type>VirtualMachine</type><path>parentVApp</path>'
    "<skip>false</skip><selectSet><name>above</name></selectSet><selectSet><name>folder</name></selectSet></selectSet>"
    '<selectSet xsi:type="TraversalSpec"><name>folder</name><type>VirtualApp</type><path>parentFolder</path>'
    "<skip>false</skip><selectSet><name>above</name></selectSet></selectSet>"
)
_DATASTORES_OF_VM: Final = (
    '<selectSet xsi:type="TraversalSpec"><name>datastores</name><type>VirtualMachine</type>'
    "<path>datastore</path><skip>false</skip></selectSet>"
)
AROUND_VMS: Final = frozenset({"Task", "Folder", "Datacenter", "VirtualApp", "Datastore"})
"""Types of what is around a VM, and read with it where it is wanted."""


def _view_object(view: str, with_tasks: bool) -> str:
    tasks = _TASKS_OF_VM if with_tasks else ""
    return (
        f'<objectSet><obj type="ContainerView">{written(view)}</obj><skip>false</skip>'
        '<selectSet xsi:type="TraversalSpec"><name>view</name><type>ContainerView</type><path>view</path>'
        f"<skip>false</skip>{tasks}</selectSet></objectSet>"
    )


def _plain_object(type_name: str, ref: str, around: Collection[str]) -> str:
    selects = ""
    if type_name == "VirtualMachine":
        selects += _TASKS_OF_VM if "Task" in around else ""
        selects += _PLACES_ABOVE if "Folder" in around else ""
        selects += _DATASTORES_OF_VM if "Datastore" in around else ""
    return f'<objectSet><obj type="{type_name}">{written(ref)}</obj><skip>false</skip>{selects}</objectSet>'
