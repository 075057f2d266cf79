"""Sends pyVmomi's typed calls over `exchange`, each once, and parses the replies within limits.

pyVmomi serialises the call and has the types. Connections, limits and the settings of the parser are those of this
module. pyVmomi's own stubs are not used: one sends a call again when the reply is lost, the other has no limits.
"""

from __future__ import annotations

import http
import http.client
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from xml.parsers.expat import ExpatError, ParserCreate

from pyVmomi import SoapAdapter, VmomiSupport

from gpuops import clock
from gpuops.errors import ProtocolError
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply, exchange
from gpuops.vsphere.transport.messages import (
    ENCODING,
    MOST_TYPED,
    REFERENCE,
    check_typed_reply,
    checked_request,
    typed_limit,
    unwritable_surrogate,
)

if TYPE_CHECKING:
    from gpuops.model.vcenter.target import Target

CALL_S: Final = 120
"""The limit for one call and its complete reply; the longest wait of a call is 20 s."""

DEEPEST: Final = 128
LONGEST_TEXT: Final = 10_000_000
"""As lxml's limit."""
_LONGEST_NAME: Final = 200
_BUFFER: Final = 1024 * 1024
"""Expat gives text in pieces of this size, and pyVmomi adds them up one by one: in pieces of 8 KiB, quadratic."""


class Stub(SoapAdapter.SoapStubAdapterBase):
    """Sends the calls of pyVmomi's managed objects; `cookie` is that of the session."""

    def __init__(self, target: Target, api_version: str, cookie: str) -> None:
        super().__init__(VmomiSupport.versionMap[f"vim25/{api_version}"])
        self.requestContext: dict[str, str] | None = None  # pyVmomi reads it by this name
        self.cookie = cookie
        self._target = target
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        """Each idle connection with the time of its last use, on the monotonic clock."""

    def __deepcopy__(self, memo: Any) -> Stub:
        """Return the stub itself, because values that are copied contain managed objects with it."""
        return self

    def InvokeMethod(self, mo: Any, method: Any, args: Any) -> Any:  # noqa: N802 - pyVmomi's name
        """Return the answer of one call, which is sent once.

        Raises the fault of the call, UnreadableReply, and the connection's own errors.
        """
        request = self.SerializeRequest(mo, method, args)
        reply = self._exchange(request)
        if reply.status not in (http.HTTPStatus.OK, http.HTTPStatus.INTERNAL_SERVER_ERROR):
            raise http.client.HTTPException(f"{reply.status} {reply.reason}")
        # the parser reads more for a larger request: one about thousands of objects has a large reply
        answer = deserialize_reply(reply.body, method.result, self, most=typed_limit(request))
        if isinstance(answer, Exception):  # some proxies send a fault with status 200
            try:
                raise answer
            finally:
                del answer, reply  # else the fault's traceback, which holds this frame, would keep both in a cycle
        if reply.status != http.HTTPStatus.OK:
            raise network.UnreadableReply("an HTTP error without a fault")
        if answer is None and method.isTask:
            raise network.UnreadableReply("no task for a call that starts one")
        return answer

    def SerializeRequest(self, mo: Any, method: Any, args: Any) -> bytes:  # noqa: N802
        """Return the request. Raises ProtocolError for an invalid id, UsageError for text that XML cannot contain."""
        if REFERENCE.fullmatch(mo._moId) is None:
            raise ProtocolError(
                f"{mo._moId!r} is not the id of an object", hint="gpuops inventory --output json contains the ids"
            )
        try:
            return checked_request(super().SerializeRequest(mo, method, args))
        except UnicodeEncodeError:
            raise unwritable_surrogate() from None

    def DropConnections(self) -> None:  # noqa: N802
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _exchange(self, request: bytes) -> HttpReply:
        headers = {"Content-Type": "text/xml; charset=UTF-8", "SOAPAction": self.versionId, "Cookie": self.cookie}
        connection = self._pop_connection()
        try:
            reply = exchange(
                connection, "POST", self._target.path, until=clock.passed_s() + CALL_S, body=request, headers=headers
            )
        except BaseException:
            connection.close()
            self.DropConnections()  # the other connections are probably broken too
            raise
        with self._lock:
            self._idle.append((connection, clock.passed_s()))
        return reply

    def _pop_connection(self) -> http.client.HTTPConnection:
        """Return an idle connection, or a new one, and close those that were idle for too long."""
        now_s = clock.passed_s()
        with self._lock:
            fresh = [pair for pair in self._idle if now_s - pair[1] < network.IDLE_CONNECTION_S]
            expired = [pair for pair in self._idle if now_s - pair[1] >= network.IDLE_CONNECTION_S]
            self._idle = fresh
            idle_connection = self._idle.pop()[0] if self._idle else None
        for connection, _ in expired:
            connection.close()
        return idle_connection or network.open_connection(self._target, network.tls_context(self._target))


def deserialize_reply(received: bytes, result_type: Any, stub: Any, *, most: int = MOST_TYPED) -> Any:
    """Return the value of a reply with at most `most` "<" and "=": an object of `result_type`, or a fault.

    Raises ExpatError for incomplete or invalid XML, UnreadableReply for everything else that no vCenter sends.
    """
    try:
        answer = _EnvelopeDeserializer(stub).Deserialize(check_typed_reply(received, most), result_type)
    except (ExpatError, network.UnreadableReply):
        raise
    except Exception as error:  # pyVmomi's code may raise anything for an untrusted reply
        raise network.UnreadableReply(f"a reply that pyVmomi cannot read ({type(error).__name__})") from error
    if answer is not None and not isinstance(answer, (result_type, Exception)):
        raise network.UnreadableReply(f"a {type(answer).__name__} where a {result_type.__name__} belongs")
    return answer


class _EnvelopeDeserializer(SoapAdapter.SoapResponseDeserializer):
    """Reads the envelope of a reply; `_BoundedDeserializer` reads its content."""

    def __init__(self, stub: Any) -> None:
        super().__init__(stub)
        self.deser = _BoundedDeserializer(stub)
        # A server sends no type that is newer than the version of the request; pyVmomi would check each element.
        self.deser.version = None
        self._depth = 0
        self._has_answer = False
        """Whether the envelope contains a response or a fault."""

    def Deserialize(self, response: bytes, result_type: Any, nsMap: Any = None) -> Any:  # noqa: N802, N803
        """Return the value in the reply, or its fault. Like pyVmomi's method, but it frees the parser at once."""
        self.resultType, self.msg, self.data = result_type, "", ""
        self.isFault = False
        self.nsMap: dict[str | None, list[str]] = {}
        self.deser.result = None
        self.parser = ParserCreate(ENCODING, SoapAdapter.NS_SEP)
        self.parser.buffer_text = True
        self.parser.buffer_size = _BUFFER
        SoapAdapter.SetHandlers(self.parser, SoapAdapter.GetHandlers(self))
        try:
            self.parser.Parse(response, True)
            answer = self.deser.GetResult()
        finally:
            # The parser, with its buffer, and both deserialisers hold each other by their handlers: only the garbage
            # collector would free them, and a service reads thousands of replies before it runs.
            SoapAdapter.SetHandlers(self.parser, _NO_HANDLERS)
            del self.parser, self.deser
        if not self._has_answer:
            raise network.UnreadableReply("a reply without an answer")
        if self.isFault:
            answer = answer if answer is not None else VmomiSupport.GetVmodlType("vmodl.RuntimeFault")()
            answer.msg = self.msg
        return answer

    def StartElementHandler(self, tag: str, attr: Any) -> None:  # noqa: N802
        self._depth += 1
        if self._depth > DEEPEST:
            raise network.UnreadableReply(_TOO_DEEP)
        self._has_answer = self._has_answer or tag.endswith(("Response", SoapAdapter.NS_SEP + "Fault"))
        super().StartElementHandler(tag, attr)

    def EndElementHandler(self, tag: str) -> None:  # noqa: N802
        self._depth -= 1
        super().EndElementHandler(tag)


class _BoundedDeserializer(SoapAdapter.SoapDeserializer):
    """pyVmomi's deserialiser with limits of depth and length, and with checks of names, ids and types."""

    def StartElementHandler(self, tag: str, attr: Any) -> None:  # noqa: N802
        stack = self.stack
        if len(stack) > DEEPEST:
            raise network.UnreadableReply(_TOO_DEEP)
        super().StartElementHandler(tag, attr)
        if "type" in attr:  # only references have it, unqualified
            self.parser.EndElementHandler = self._end_of_reference

    def _end_of_reference(self, tag: str) -> None:
        """Check the id of a reference at its end tag, then call the usual handler, which is set again."""
        self.parser.EndElementHandler = self.EndElementHandler
        if REFERENCE.fullmatch(self.data) is None:
            raise network.UnreadableReply(f"the id {self.data[:80]!r}, which no object has")
        self.EndElementHandler(tag)

    def CharacterDataHandler(self, characters: str) -> None:  # noqa: N802
        self.data: str = self.data + characters if self.data else characters
        if len(self.data) > LONGEST_TEXT:
            raise network.UnreadableReply(f"a text of more than {LONGEST_TEXT:,} characters")

    def LookupWsdlType(self, ns: str, name: str, allowManagedObjectReference: bool = False) -> Any:  # noqa: N802, N803
        return _find_type(ns, name, allowManagedObjectReference)


_NO_HANDLERS: Final = (None,) * 5
"""The number of handlers that pyVmomi sets."""
_TOO_DEEP: Final = f"more than {DEEPEST} elements within each other"
_LOOKUP: Final = SoapAdapter.SoapDeserializer()


@lru_cache(maxsize=4096)
def _find_type(ns: str, name: str, reference: bool) -> Any:
    """Return pyVmomi's type of that name. Cached, because every element needs it; pyVmomi's search is recursive."""
    if len(name) > _LONGEST_NAME:
        raise KeyError(f"a type name of more than {_LONGEST_NAME} characters")
    return SoapAdapter.SoapDeserializer.LookupWsdlType(_LOOKUP, ns, name, reference)
