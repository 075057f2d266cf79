"""Reader: bulk reads of properties, over pyVmomi's session but not through its deserialiser.

RetrievePropertiesEx with one container view over everything, in pages, on a connection of its own. Each page is parsed
by lxml and let go before the next is asked for. Measured beside pyVmomi's deserialiser in tests/bench.
"""

from __future__ import annotations

import functools
import http.client
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from xml.sax.saxutils import escape

from gpuops.errors import GpuopsError, ProtocolError
from gpuops.vsphere import door
from gpuops.vsphere.elements import child, children, kind, safe_parser, text
from gpuops.vsphere.session import Session

PAGE_OBJECTS: Final = 250
"""Larger pages save round trips, and cost memory and time in the parser: its tree is ten times the page."""
DEADLINE_S: Final = 600
"""For one read, all its pages together, whatever the server sends and however slowly."""
LARGEST_PAGE: Final = 256 * 1024 * 1024
_CHUNK: Final = 1024 * 1024

_MOREF: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")
_ENVELOPE: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>{}</soapenv:Body></soapenv:Envelope>'
)


@dataclass(frozen=True, slots=True)
class Found:
    """One object of a reply: its properties' XML by path, and the paths that this login could not read."""

    type: str
    ref: str
    properties: Mapping[str, Any]
    unreadable: tuple[str, ...] = ()


Wanted = Mapping[str, Sequence[str]]
"""Property paths by managed object type."""


Record = TypeVar("Record")


class _SessionEnded(Exception):
    """The server does not know our session any more (E2: it says so inside missingSet as well)."""


class Reader:
    """Bulk reads of one session. `round_trips` counts the requests sent."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connection: http.client.HTTPConnection | None = None
        self.round_trips = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def everything(self, wanted: Wanted, decode: Callable[[Found], Record]) -> list[Record]:
        """What `decode` makes of every object of these types below the root, and of the tasks VMs list as recent.

        `decode` must keep nothing of the XML: it dies with its page. Raises NotConnected in its kinds.
        """
        return self._again_if_ended(lambda: self._through_a_view(wanted, decode))

    def these(self, wanted: Wanted, refs: Iterable[tuple[str, str]], decode: Callable[[Found], Record]) -> list[Record]:
        """What `decode` makes of the named (type, id) objects; one that is gone is left out."""
        objects = list(refs)
        found: list[Record] = []
        for start in range(0, len(objects), PAGE_OBJECTS):
            page = objects[start : start + PAGE_OBJECTS]
            found += self._again_if_ended(functools.partial(self._named, wanted, page, decode))
        return found

    def _through_a_view(self, wanted: Wanted, decode: Callable[[Found], Record]) -> list[Record]:
        """A view belongs to its session: after a new login it is made anew."""
        from pyVmomi import VmomiSupport

        view_types = [VmomiSupport.GetWsdlType("urn:vim25", name) for name in wanted if name != "Task"]
        content = self._session.content
        view = self._session.read(content.viewManager.CreateContainerView, content.rootFolder, view_types, True)
        self.round_trips += 1
        found = [decode(each) for each in self._pages(wanted, _view_object(str(view._moId), "Task" in wanted))]
        self._forget(view)
        self.round_trips += 1
        return found

    def _forget(self, view: Any) -> None:
        from pyVmomi import vmodl

        try:
            self._session.read(view.DestroyView)
        except GpuopsError as error:
            if not isinstance(error.__cause__, vmodl.fault.ManagedObjectNotFound):
                raise  # it is gone with the session that ended meanwhile

    def _named(
        self, wanted: Wanted, page: Iterable[tuple[str, str]], decode: Callable[[Found], Record]
    ) -> list[Record]:
        objects = "".join(_plain_object(*each, "Task" in wanted) for each in page)
        return [decode(each) for each in self._pages(wanted, objects)]

    def _again_if_ended(self, read: Callable[[], list[Record]]) -> list[Record]:
        seen = self._session.logins
        try:
            return read()
        except _SessionEnded:
            self._session.login_again(seen)
        try:
            return read()
        except _SessionEnded as ended:
            raise ProtocolError("vCenter ends the session as soon as it begins", hint="look at its vpxd log") from ended

    def _pages(self, wanted: Wanted, object_set: str) -> Iterator[Found]:
        deadline = time.monotonic() + DEADLINE_S
        collector = f'<_this type="PropertyCollector">{escape(self._collector)}</_this>'
        property_sets = "".join(_property_set(name, paths) for name, paths in wanted.items())
        reply = self._post(
            f'<RetrievePropertiesEx xmlns="urn:vim25">{collector}<specSet>{property_sets}{object_set}'
            f"<reportMissingObjectsInResults>true</reportMissingObjectsInResults></specSet>"
            f"<options><maxObjects>{PAGE_OBJECTS}</maxObjects></options></RetrievePropertiesEx>",
            deadline,
        )
        while (page := child(reply, "returnval")) is not None:
            yield from _objects(page)
            token = text(page, "token")
            if token is None:
                break
            reply = self._post(
                f'<ContinueRetrievePropertiesEx xmlns="urn:vim25">{collector}<token>{escape(token)}</token>'
                "</ContinueRetrievePropertiesEx>",
                deadline,
            )

    @property
    def _collector(self) -> str:
        return str(self._session.content.propertyCollector._moId)

    def _post(self, call: str, deadline: float) -> Any:
        """The method's response element. A read is asked again once when the reply broke off: it changes nothing."""
        body = _ENVELOPE.format(call).encode()
        try:
            return self._exchange(body, deadline)
        except door.BROKEN_OFF:
            self.close()
        except door.LOST_ERRORS as error:
            self.close()
            raise door.barred(self._session.target, error) from error
        try:
            return self._exchange(body, deadline)
        except door.LOST_ERRORS as error:
            self.close()
            raise door.barred(self._session.target, error) from error

    def _exchange(self, body: bytes, deadline: float) -> Any:
        if self._connection is None:
            self._connection = door.open_connection(self._session.target, door.tls_context(self._session.target))
        self.round_trips += 1
        headers = {
            "Content-Type": "text/xml; charset=UTF-8",
            "SOAPAction": f'"urn:vim25/{self._session.api_version}"',
            "Cookie": self._session.cookie,
            "Accept-Encoding": "identity",
        }
        self._connection.request("POST", self._session.target.path, body, headers)
        response = self._connection.getresponse()
        received = _read(response, deadline, self._session.target.address)
        if response.status not in (http.HTTPStatus.OK, http.HTTPStatus.INTERNAL_SERVER_ERROR):
            raise http.client.HTTPException(f"{response.status} {response.reason}")
        return _response(received, self._session.target.address)


def _read(response: http.client.HTTPResponse, deadline: float, address: str) -> bytes:
    received = bytearray()
    while chunk := response.read(_CHUNK):
        received += chunk
        if len(received) > LARGEST_PAGE:
            raise ProtocolError(f"{address} sends a reply of more than {LARGEST_PAGE // 1024**2} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(received)


def _response(received: bytes, address: str) -> Any:
    from lxml import etree

    try:
        root: Any = etree.fromstring(received, safe_parser())
    except etree.XMLSyntaxError as error:
        raise ProtocolError(f"{address} sends a reply that is not XML: {error.msg}") from error
    if root.getroottree().docinfo.doctype:
        raise ProtocolError(f"{address} sends a document type, which SOAP forbids")
    body = root.find("{http://schemas.xmlsoap.org/soap/envelope/}Body")
    if body is None or len(body) == 0:
        raise ProtocolError(f"{address} sends a reply without a SOAP body")
    if body[0].tag.endswith("}Fault"):
        raise _fault(body[0], address)
    return body[0]


def _fault(element: Any, address: str) -> GpuopsError | _SessionEnded:
    detail = element.find("detail")
    typed = detail[0] if detail is not None and len(detail) else None
    if typed is not None and kind(typed) == "NotAuthenticated":
        return _SessionEnded()
    what = kind(typed) if typed is not None else "fault"
    return ProtocolError(f"{address} refuses a bulk read: {what}: {element.findtext('faultstring') or ''}")


def _objects(page: Any) -> Iterator[Found]:
    for each in children(page, "objects"):
        moref = child(each, "obj")
        if moref is None or not _MOREF.fullmatch(moref.text or ""):
            raise ProtocolError("vCenter names an object in a way that no vCenter does")
        # A property is its name, then its value (DynamicProperty, a sequence); an unset one may come without a value.
        # By position, because looking for them by name costs more than parsing the page did.
        properties = {one[0].text: one[1] for one in children(each, "propSet") if len(one) > 1}
        yield Found(moref.get("type", ""), moref.text, properties, _unreadable(list(children(each, "missingSet"))))


def _unreadable(missing: Sequence[Any]) -> tuple[str, ...]:
    if not missing:
        return ()
    if any(kind(child(child(one, "fault"), "fault")) == "NotAuthenticated" for one in missing):
        raise _SessionEnded
    return tuple(path for one in missing if (path := text(one, "path")))


def _property_set(name: str, paths: Sequence[str]) -> str:
    listed = "".join(f"<pathSet>{path}</pathSet>" for path in paths)
    return f"<propSet><type>{name}</type><all>false</all>{listed}</propSet>"


_TASKS_OF_VM: Final = (
    '<selectSet xsi:type="TraversalSpec"><name>tasks</name><type>VirtualMachine</type>'
    "<path>recentTask</path><skip>false</skip></selectSet>"
)


def _view_object(view: str, with_tasks: bool) -> str:
    tasks = _TASKS_OF_VM if with_tasks else ""
    return (
        f'<objectSet><obj type="ContainerView">{escape(view)}</obj><skip>true</skip>'
        '<selectSet xsi:type="TraversalSpec"><name>view</name><type>ContainerView</type><path>view</path>'
        f"<skip>false</skip>{tasks}</selectSet></objectSet>"
    )


def _plain_object(type_name: str, ref: str, with_tasks: bool) -> str:
    tasks = _TASKS_OF_VM if with_tasks and type_name == "VirtualMachine" else ""
    return f'<objectSet><obj type="{type_name}">{escape(ref)}</obj><skip>false</skip>{tasks}</objectSet>'
