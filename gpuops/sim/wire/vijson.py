"""Reads VI/JSON requests to typed arguments, and writes results and faults as JSON replies.

`POST /sdk/vim25/{release}/{type}/{moId}/{method}` with the parameters in a JSON object calls a method,
`GET /sdk/vim25/{release}/{type}/{moId}/{property}` reads a property. 204 is the reply without a value, 500 the one with
a fault (Broadcom, Virtual Infrastructure JSON API; vSphere Web Services SDK Programming Guide 8.0).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyVmomi import Iso8601, VmomiSupport, vmodl

from gpuops.files.file import parse_json
from gpuops.sim.core.encoder import NAMESPACE, Encoded, Encoding
from gpuops.sim.core.json_encoder import FAULT_MESSAGE, REFERENCE, TYPE_NAME, VALUE, json_encoder, without_box
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.wire.handler import Incoming

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
    is_supported = (
        requested_version is not None
        and _numbers(release) >= FIRST_RELEASE
        and VmomiSupport.IsChildVersion(server, requested_version)
    )
    return str(requested_version) if is_supported else ""


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def is_served(path: str, newest: str) -> bool:
    """Whether a path is one of VI/JSON that a server of the version `newest` answers."""
    release, _, remaining_path = path.removeprefix(_PREFIX).partition("/")
    return path.startswith(_PREFIX) and remaining_path.count("/") == 2 and bool(_version(release, newest))


def parse(incoming: Incoming) -> JsonRequest:
    """Return the request of a path that `is_served` accepts; its body is parsed later, for the parameters."""
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
        """Returns the encoder of a version."""
        return json_encoder

    def arguments(self, info: Any) -> dict[str, Any]:
        """The parameters as pyVmomi values by name; None for an omitted one, an empty list for an omitted list.

        Raises vmodl.fault.InvalidRequest for what cannot be read, InvalidArgument for a missing required one.
        """
        document = self._document()
        parameters = {parameter.name: parameter for parameter in info.params}
        unknown = next((name for name in document if name not in parameters and name != TYPE_NAME), None)
        if unknown is not None:
            raise vmodl.fault.InvalidRequest(msg=f"{self.method} has no parameter {unknown}")
        return {name: self._argument(document.get(name), parameter) for name, parameter in parameters.items()}

    def property_path(self) -> str:
        """Return the property that is read. Raises vmodl.query.InvalidProperty for a part of one, which has no URL."""
        if "." in self.name or "[" in self.name:
            raise vmodl.query.InvalidProperty(msg=f"{self.receiver_type} has no property {self.name}", name=self.name)
        return self.name

    def start_types(self) -> Iterator[str]:
        """The types of the objects that a bulk read starts from."""
        for spec in _list(self._document().get("specSet")):
            for start in _list(_dict(spec).get("objectSet")):
                yield str(_dict(_dict(start).get("obj")).get("type", ""))

    def reply(self, result: Any, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with a method's result; a void or unset one has no body."""
        if isinstance(result, Encoded):
            return 200, b"".join(result.parts)
        if result is None or declared_type is type(None):
            return 204, b""
        vmomi_value = result.ref if isinstance(result, ManagedObject) else result
        return 200, json_encoder(self.version).document(vmomi_value, declared_type)

    def property_reply(self, fragment: bytes, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with the value of a property; no body if it is unset."""
        if not fragment:
            return 204, b""
        return 200, fragment if declared_type is object else without_box(fragment)

    def fault_reply(self, fault: Any) -> bytes:
        """The body of a reply with a fault."""
        return json_encoder(self.version).document(fault, vmodl.MethodFault)

    def _document(self) -> Mapping[str, Any]:
        if not self.body.strip():
            return {}
        try:
            document = parse_json(self.body)
        except (ValueError, RecursionError) as error:
            raise vmodl.fault.InvalidRequest(msg="the body is not valid JSON") from error
        if not isinstance(document, dict):
            raise vmodl.fault.InvalidRequest(msg="the body must be a JSON object with the parameters")
        return document

    def _argument(self, json_value: object, parameter: Any) -> Any:
        """Return a parameter as a pyVmomi value. Raises a vmodl fault for a missing or unreadable one."""
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


_TYPES_BY_NAME: Final = {
    "binary": VmomiSupport.binary,
    "ArrayOfBinary": VmomiSupport.GetWsdlType(NAMESPACE, "ArrayOfBase64Binary"),
    f"ArrayOf{REFERENCE}": VmomiSupport.GetVmodlType("ManagedObject[]"),
}
"""Types whose names pyVmomi does not know, or uses for another type."""
_INTEGER_RANGES: Final = {
    "byte": (-(1 << 7), 1 << 8),
    "short": (-(1 << 15), 1 << 15),
    "int": (-(1 << 31), 1 << 31),
    "long": (-(1 << 63), 1 << 63),
}
"""(lowest number, highest number + 1) of each integer type; bytes are sent signed or unsigned."""
_FLOAT_LIMIT: Final = 1 << 1023
"""Numbers from here on are outside the range of the API."""
_LOCALIZED: Final = "LocalizedMethodFault"


class Unreadable(ValueError):
    """A JSON value does not have the declared type, which the text names."""


class Untyped(Unreadable):
    """A JSON object for a data object has no `_typeName`; vCenter 8.0.3 then reads it as a reference."""


class OfOtherType(Unreadable):
    """A JSON object names a type other than the declared one."""


def decode(json_value: object, expected: Any, version: str) -> Any:
    """Return a JSON value as the pyVmomi value of type `expected`. Raises Unreadable."""
    if expected is object:
        return _any(json_value, version)
    if issubclass(expected, list):
        if not isinstance(json_value, list):
            raise Unreadable(f"an array of {VmomiSupport.GetWsdlName(expected.Item)} is expected")
        return expected([decode(element, expected.Item, version) for element in json_value])
    if issubclass(expected, VmomiSupport.ManagedObject):
        return _reference(json_value, expected)
    if issubclass(expected, vmodl.MethodFault):
        return _fault(json_value, expected, version)
    if issubclass(expected, VmomiSupport.DataObject):
        return _structure(json_value, expected, version)
    return _simple(json_value, expected)


def _any(json_value: object, version: str) -> Any:
    """Return a value of any type; the JSON object names the type in `_typeName`. Raises Unreadable."""
    fields = _fields(json_value)
    name = fields.get(TYPE_NAME)
    if not isinstance(name, str):
        raise Unreadable(f"a value of any type needs its {TYPE_NAME}")
    if name == REFERENCE:
        return _reference(json_value, VmomiSupport.ManagedObject)
    if name == _LOCALIZED:
        return _fault(json_value, vmodl.MethodFault, version)
    kind = _type(name)
    if issubclass(kind, (VmomiSupport.DataObject, vmodl.MethodFault)):
        return decode(json_value, kind, version)
    if issubclass(kind, VmomiSupport.ManagedObject) or VALUE not in fields:
        raise Unreadable(f"{name} is not the type of a boxed value")
    return decode(fields[VALUE], kind, version)


def _reference(json_value: object, expected: Any) -> Any:
    fields = _fields(json_value)
    name, moid = fields.get("type"), fields.get("value")
    if fields.get(TYPE_NAME, REFERENCE) != REFERENCE:
        raise OfOtherType(f"a {REFERENCE} is expected")
    if not isinstance(name, str) or not isinstance(moid, str):
        raise Unreadable("a reference needs type and value")
    kind = _type(name)
    if not issubclass(kind, expected):
        raise OfOtherType(f"a reference to a {VmomiSupport.GetWsdlName(expected)} is expected")
    return kind(moid)


def _fault(json_value: object, expected: Any, version: str) -> Any:
    """Return a fault, sent as such or within a LocalizedMethodFault, as govmomi does."""
    fields = dict(_fields(json_value))
    message = fields.pop(FAULT_MESSAGE, None)
    if fields.get(TYPE_NAME) == _LOCALIZED or "fault" in fields:
        message = fields.get("localizedMessage")
        fields = dict(_fields(fields.get("fault")))
    if message is not None and not isinstance(message, str):
        raise Unreadable("the message of a fault is text")
    fault = _structure(fields, expected, version)
    fault.msg = message
    return fault


def _structure(json_value: object, expected: Any, version: str) -> Any:
    """Return a data object. Raises Untyped, OfOtherType or Unreadable."""
    fields = dict(_fields(json_value))
    if TYPE_NAME not in fields:
        raise Untyped(f"Invalid MoRef field: {next(iter(fields), '')}")  # vCenter's text: it then expects a reference
    name = fields.pop(TYPE_NAME)
    kind = _type(name)
    if not issubclass(kind, expected):
        raise OfOtherType(f"{name} is not a {VmomiSupport.GetWsdlName(expected)}")
    properties = _properties(kind, version)
    instance = kind()
    for field, field_value in fields.items():
        info = properties.get(field)
        if info is None:
            raise Unreadable(f"{VmomiSupport.GetWsdlName(kind)} has no field {field}")
        if field_value is None:
            continue
        setattr(instance, info.name, decode(field_value, info.type, version))
    return instance


@cache
def _properties(kind: Any, version: str) -> dict[str, Any]:
    versions = VmomiSupport.parentMap[version]
    return {info.name: info for info in kind._GetPropertyList() if info.version in versions}


def _simple(json_value: object, expected: Any) -> Any:
    simple_value = None
    if isinstance(json_value, bool):
        simple_value = json_value if expected is bool else None
    elif isinstance(json_value, str):
        simple_value = _text_value(json_value, expected)
    elif isinstance(json_value, (int, float)):
        simple_value = _number_value(json_value, expected)
    if simple_value is None:
        raise Unreadable(f"{_abbreviate(json_value)} is not a {VmomiSupport.GetWsdlName(expected)}")
    return simple_value


def _number_value(json_value: float, expected: Any) -> Any:
    if issubclass(expected, float):
        return expected(json_value) if abs(json_value) < _FLOAT_LIMIT else None
    if isinstance(json_value, int) and issubclass(expected, int) and expected is not bool:
        first, end = _INTEGER_RANGES[VmomiSupport.GetWsdlName(expected)]
        return expected(json_value) if first <= json_value < end else None
    return None


def _text_value(json_value: str, expected: Any) -> Any:
    """Return the value of a text for this type; None if the text is not a value of it."""
    if expected is datetime:
        return _moment(json_value)
    if expected is VmomiSupport.binary:
        return _binary(json_value)
    if expected is type:
        return _type(json_value)
    if expected is VmomiSupport.ManagedMethod:
        return _method(json_value)
    if issubclass(expected, VmomiSupport.Enum):
        return getattr(expected, json_value) if json_value in expected.values else None
    return expected(json_value) if issubclass(expected, str) else None


def _method(name: str) -> Any:
    try:
        return VmomiSupport.GetWsdlMethod(NAMESPACE, name)
    except KeyError:
        return None


def _moment(text: str) -> datetime | None:
    try:
        moment = Iso8601.ParseISO8601(text)
    except (ValueError, OverflowError):
        return None
    return moment if isinstance(moment, datetime) else None


def _binary(text: str) -> Any:
    try:
        return VmomiSupport.binary(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _fields(json_value: object) -> Mapping[str, Any]:
    if not isinstance(json_value, dict):
        raise Unreadable("a JSON object is expected")
    return json_value


def _type(name: object) -> Any:
    """The type of that name. Raises Unreadable for one that the API does not have."""
    wire_type = _known_type(name) if isinstance(name, str) else None
    if wire_type is None:
        raise Unreadable(f"there is no type {_abbreviate(name)}")
    return wire_type


def _known_type(name: str) -> Any:
    if name in _TYPES_BY_NAME:
        return _TYPES_BY_NAME[name]
    for namespace in (NAMESPACE, VmomiSupport.XMLNS_XSD):
        try:
            return VmomiSupport.GetWsdlType(namespace, name)
        except KeyError:
            continue
    return None


def _abbreviate(json_value: object) -> str:
    text = repr(json_value)
    return text if len(text) <= 40 else f"{text[:37]}..."
