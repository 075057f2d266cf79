"""Reads VI/JSON requests to typed arguments, and writes results and faults as JSON replies.

`POST /sdk/vim25/{release}/{type}/{moId}/{method}` with the parameters in a JSON object calls a method,
`GET /sdk/vim25/{release}/{type}/{moId}/{property}` reads a property. 204 is the reply without a value, 500 the one with
a fault (Broadcom, Virtual Infrastructure JSON API; vSphere Web Services SDK Programming Guide 8.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyVmomi import VmomiSupport, vmodl

from gpuops.files.file import parse_json
from gpuops.sim.core.encoder import Encoded, Encoding
from gpuops.sim.core.json_encoder import TYPE_NAME, json_encoder, without_box
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.wire.handler import Incoming
from gpuops.sim.wire.vijson_values import OfOtherType, Unreadable, Untyped, decode

VERBS: Final = frozenset({"GET", "POST"})
FIRST_RELEASE: Final = (8, 0, 1, 0)
"""The release of vCenter that brought VI/JSON."""

_PREFIX: Final = "/sdk/vim25/"
_OPERATION_ID_HEADERS: Final = ("operationid", "opid", "x-request-id")


@cache
def _version(release: str, newest: str) -> str:
    """The API version of a release in a path; '' for one that a server of the version `newest` does not speak."""
    server = VmomiSupport.versionMap[f"vim25/{newest}"]
    requested_version = VmomiSupport.versionMap.get(f"vim25/{release}")
    spoken = (
        requested_version is not None
        and _numbers(release) >= FIRST_RELEASE
        and VmomiSupport.IsChildVersion(server, requested_version)
    )
    return str(requested_version) if spoken else ""


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def is_served(path: str, newest: str) -> bool:
    """Whether a path is one of VI/JSON that a server of the version `newest` answers."""
    release, _, remaining_path = path.removeprefix(_PREFIX).partition("/")
    return path.startswith(_PREFIX) and remaining_path.count("/") == 2 and bool(_version(release, newest))


def parse(incoming: Incoming) -> JsonRequest:
    """The request behind a path that is served; its body is read when the parameters are asked for."""
    release, receiver_type, moid, name = map(unquote, urlsplit(incoming.target).path.removeprefix(_PREFIX).split("/"))
    operation_ids = (incoming.headers[header] for header in _OPERATION_ID_HEADERS if header in incoming.headers)
    return JsonRequest(
        method="Fetch" if incoming.verb == "GET" else name,
        receiver_type=receiver_type,
        moid=moid,
        operation_id=next(operation_ids, ""),
        version=VmomiSupport.versionMap[f"vim25/{release}"],
        name=name,
        body=incoming.body,
    )


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """A call or the read of a property; `name` is that of the method or of the property."""

    method: str
    receiver_type: str
    moid: str
    operation_id: str
    version: str
    name: str
    body: bytes

    @property
    def wire(self) -> Callable[[str], Encoding]:
        """How values are written for a version."""
        return json_encoder

    def arguments(self, info: Any) -> dict[str, Any]:
        """The parameters as pyVmomi values by name; omitted ones are None, omitted lists empty.

        Raises vmodl.fault.InvalidRequest for what cannot be read, InvalidArgument for a missing required one.
        """
        document = self._document()
        parameters = {parameter.name: parameter for parameter in info.params}
        unknown = next((name for name in document if name not in parameters and name != TYPE_NAME), None)
        if unknown is not None:
            raise vmodl.fault.InvalidRequest(msg=f"{self.method} has no parameter {unknown}")
        return {name: self._argument(document.get(name), parameter) for name, parameter in parameters.items()}

    def property_path(self) -> str:
        """Which property is read. Raises vmodl.query.InvalidProperty for a part of one: it has no path of its own."""
        if "." in self.name or "[" in self.name:
            raise vmodl.query.InvalidProperty(msg=f"{self.receiver_type} has no property {self.name}", name=self.name)
        return self.name

    def starts(self) -> Iterator[str]:
        """The types of the objects that a bulk read starts from."""
        for spec in _list(self._document().get("specSet")):
            for start in _list(_dict(spec).get("objectSet")):
                yield str(_dict(_dict(start).get("obj")).get("type", ""))

    def reply(self, result: Any, static: Any) -> tuple[int, bytes]:
        """The HTTP status and body with a method's result; a void or unset one has no body."""
        if isinstance(result, Encoded):
            return 200, b"".join(result.parts)
        if result is None or static is type(None):
            return 204, b""
        plain = result.ref if isinstance(result, ManagedObject) else result
        return 200, json_encoder(self.version).document(plain, static)

    def property_reply(self, fragment: bytes, static: Any) -> tuple[int, bytes]:
        """The same with the value of a property; an unset one has no body."""
        if not fragment:
            return 204, b""
        return 200, fragment if static is object else without_box(fragment)

    def fault_reply(self, fault: Any) -> bytes:
        """The body of a reply with a fault."""
        return json_encoder(self.version).document(fault, vmodl.MethodFault)

    def _document(self) -> Mapping[str, Any]:
        if not self.body.strip():
            return {}
        try:
            document = parse_json(self.body)
        except (ValueError, RecursionError) as error:
            raise vmodl.fault.InvalidRequest(msg="the body is no JSON that a client sends") from error
        if not isinstance(document, dict):
            raise vmodl.fault.InvalidRequest(msg="the body is to be a JSON object with the parameters")
        return document

    def _argument(self, json_value: object, parameter: Any) -> Any:
        if json_value is None and issubclass(parameter.type, list):
            return parameter.type()
        if json_value is None and parameter.flags & VmomiSupport.F_OPTIONAL:
            return None
        if json_value is None:
            raise vmodl.fault.InvalidArgument(
                msg=f"A specified parameter was not correct: {parameter.name}", invalidProperty=parameter.name
            )
        try:
            return decode(json_value, parameter.type, self.version)
        except Untyped as error:
            raise vmodl.fault.InvalidArgument(msg=str(error)) from error
        except OfOtherType as error:
            raise vmodl.fault.InvalidType(msg=f"{parameter.name}: {error}", argument=parameter.name) from error
        except (Unreadable, AttributeError, TypeError, RecursionError) as error:
            raise vmodl.fault.InvalidRequest(msg=f"{parameter.name}: {error}") from error


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
