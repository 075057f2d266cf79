"""The two wires of the vSphere Automation API: REST in its two shapes, and JSON-RPC 2.0 with vAPI's typed values.

/rest wraps values in `value`, /api does not (vSphere 7.0 U2 and later). govc and community.vmware use /rest, with
`~action` and `/id:` in it; newer clients use /api. An error has the shape that vCenter gives it:
`{"type": ..., "value": {"error_type": ..., "messages": [...]}}` under /rest, the value alone under /api. JSON-RPC,
also on /api, is the wire of the vSphere Automation SDKs (`vmware-vcenter`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from gpuops.files.file import parse_json
from gpuops.sim.vcenter.tagging import TAGGING
from gpuops.sim.vcenter.vapi_values import TRUTH, ListOf, MapValue, OptionalValue, Shape, Struct, VapiFault, structure
from gpuops.sim.wire.admin import basic_login
from gpuops.sim.wire.automation import inventory_reads
from gpuops.sim.wire.automation.direct_path_devices import CONFIGURE, DEVICES, TASKS
from gpuops.sim.wire.automation.services import ERRORS, POWER, SESSION, VapiServices

SESSION_HEADER: Final = "vmware-api-session-id"
PREFIXES: Final = ("/rest/", "/api/")
_REST: Final = "/rest/"
_STATUS: Final = {
    "concurrent_change": 409,
    "internal_server_error": 500,
    "not_found": 404,
    "operation_not_found": 404,
    "service_unavailable": 503,
    "timed_out": 504,
    "unauthenticated": 401,
    "unauthorized": 403,
}
"""HTTP status of the errors that are not 400 (vmware-vapi-runtime, vapi/rest/lib.py)."""

_FILTER: Final = "filter."
_LIST_NUMBER: Final = re.compile(r"\.[0-9]+$")
"""The number of a value in a list, as in `filter.names.1` (vSphere Automation API reference, datacenter.list)."""

_AS_TASK: Final = "vmw-task"
"""The query parameter that makes a POST return a task, with status 202."""
Query = Mapping[str, list[str]]


def answer(
    services: VapiServices, verb: str, target: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, bytes]:
    """Return (HTTP status, JSON) of one call below /api or /rest. The names of `headers` are in lower case."""
    url = urlsplit(target)
    under_rest = url.path.startswith(_REST)
    try:
        vapi_value = _invoke(services, verb, url.path, parse_qs(url.query, keep_blank_values=True), headers, body)
    except VapiFault as fault:
        error_json = _error(fault, under_rest=under_rest)
        document: Any = {"type": f"{ERRORS}.{fault.kind}", "value": error_json} if under_rest else error_json
        return _STATUS.get(fault.kind, 400), json.dumps(document).encode()
    if under_rest:
        return 200, json.dumps({"value": _rest_json(vapi_value, under_rest=True)}).encode()
    if vapi_value is None:
        return 204, b""
    is_created = verb == "POST" and isinstance(vapi_value, str)
    is_task = is_created and parse_qs(url.query).get(_AS_TASK) == ["true"]
    return 202 if is_task else 201 if is_created else 200, json.dumps(_rest_json(vapi_value, under_rest=False)).encode()


def _invoke(services: VapiServices, verb: str, path: str, query: Query, headers: Mapping[str, str], body: bytes) -> Any:
    """Map a REST path to a service and operation and return its result. Raises VapiFault, also for unknown paths."""
    under_rest = path.startswith(_REST)
    steps = [unquote(step) for step in path.split("/")[2:] if step]
    if under_rest and steps[:2] == ["com", "vmware"]:
        steps = steps[2:]
    action = next(iter(query.get("~action") or query.get("action") or ()), "")
    if steps in (["cis", "session"], ["session"]):
        if verb == "POST" and action != "get":
            return services.log_in(*basic_login(headers))
        operation = {"DELETE": "delete", "GET": "get"}.get(verb, action)
        return services.invoke(headers.get(SESSION_HEADER, ""), SESSION, operation, {})
    if steps[:2] == ["cis", "tagging"] and 3 <= len(steps) <= 4:
        identity = steps[3].removeprefix("id:") if len(steps) == 4 else ""
        operation = action or _by_verb(verb, identity)
        parameters = _tagging_call(steps[2], operation, identity, _content(body), under_rest=under_rest)
        return services.invoke(headers.get(SESSION_HEADER, ""), f"{TAGGING}.{steps[2]}", operation, parameters)
    if steps[:1] == ["vcenter"] and 2 <= len(steps) <= 3 and steps[1] in inventory_reads.BY_PATH:
        service = inventory_reads.BY_PATH[steps[1]]
        identity = steps[2] if len(steps) == 3 else ""
        operation = action or _by_verb(verb, identity)
        parameters = _inventory_call(service, operation, identity, query, under_rest=under_rest)
        return services.invoke(headers.get(SESSION_HEADER, ""), service.name, operation, parameters)
    if steps[:2] == ["vcenter", "vm"] and steps[3:4] == ["power"] and len(steps) <= 5:
        operation = next(iter(steps[4:]), action) or {"GET": "get"}.get(verb, verb.lower())
        return services.invoke(headers.get(SESSION_HEADER, ""), POWER, operation, {"vm": steps[2]})
    if not under_rest and (call := _device_call(verb, steps, action, query, body)) is not None:
        return services.invoke(headers.get(SESSION_HEADER, ""), *call)
    services.require_session(headers.get(SESSION_HEADER, ""))  # without a session even an unknown path is 401
    raise VapiFault(
        "not_found",
        f"Unable to find operations for URL: {path}.",
        message_id="com.vmware.vapi.rest.operationsForUrlNotFound",
        args=(path,),
    )


def _device_call(
    verb: str, steps: list[str], action: str, query: Query, body: bytes
) -> tuple[str, str, dict[str, Any]] | None:
    """Return (service, operation, parameters) of a call for DirectPath devices or their tasks; None = another call."""
    match verb, steps, action:
        case "GET", ["vcenter", "host", host, "hardware", "direct-path-devices"], "":
            parameters: dict[str, Any] = {"host": host}
            if "devices" in query:
                parameters["filter_spec"] = {"devices": query["devices"]}
            if "vm_class" in query:
                parameters["list_details"] = {"vm_class": _value(query["vm_class"], TRUTH)}
            return DEVICES, "list", parameters
        case "POST", ["vcenter", "host", host, "hardware", "direct-path-devices"], "configure":
            spec = _content(body)
            return DEVICES, CONFIGURE, {"host": host, "configure_spec": {} if spec is None else structure(spec)}
        case "GET", ["cis", "tasks", task], "":
            return TASKS, "get", {"task": task}
        case _:
            pass
    return None


def _by_verb(verb: str, identity: str) -> str:
    operations = {"GET": "get" if identity else "list", "POST": "create", "PATCH": "update", "DELETE": "delete"}
    return operations.get(verb, verb.lower())


def _tagging_call(resource: str, operation: str, identity: str, content: object, *, under_rest: bool) -> dict[str, Any]:
    """The parameters of a call of the tagging services."""
    spec = {"create": "create_spec", "update": "update_spec"}.get(operation)
    parameters = {} if content is None else dict(structure(content))
    if spec is not None and not under_rest:
        parameters = {spec: parameters}  # under /api the specification is the body
    if identity:
        key = "category_id" if resource == "category" or operation == "list-tags-for-category" else "tag_id"
        parameters[key] = identity
    return parameters


def _inventory_call(
    service: inventory_reads.InventoryService, operation: str, identity: str, query: Query, *, under_rest: bool
) -> dict[str, Any]:
    """Return the parameters of a call of an inventory service. For a list, the query holds the filter's fields.

    Under /rest they are named `filter.names.1`, `filter.names.2`; under /api `names` is repeated.
    """
    if operation != "list":
        return {service.key: identity} if identity else {}
    shapes = service.filter_type.fields
    lists: dict[str, list[str]] = {}
    single_values: dict[str, Any] = {}
    for name, values in query.items():
        if under_rest and not name.startswith(_FILTER):
            single_values[name] = values
            continue
        field = _LIST_NUMBER.sub("", name.removeprefix(_FILTER)) if under_rest else name
        lists[field] = [*lists.get(field, ()), *values]
    return {**single_values, "filter": {name: _value(values, shapes.get(name)) for name, values in lists.items()}}


def _value(values: list[str], shape: Shape | None) -> object:
    """Return the value of a query parameter for a field of this type."""
    if isinstance(shape, ListOf):
        return values
    if shape is TRUTH:
        return {"true": True, "false": False}.get(values[-1], values[-1])
    return values[-1]


def _content(body: bytes) -> object:
    """Return the JSON of a request's body; None if it is empty. Raises VapiFault of kind invalid_request."""
    if not body.strip():
        return None
    try:
        return parse_json(body)
    except ValueError:
        raise VapiFault("invalid_request", "The body of the request is not valid JSON.") from None


def _rest_json(vapi_value: Any, *, under_rest: bool) -> Any:
    """Return the value as plain JSON, without unset fields. Under /rest a map is a list of keys and values."""
    match vapi_value:
        case Struct():
            fields = (
                (name, _rest_json(field, under_rest=under_rest))
                for name, field in vapi_value.fields.items()
                if not _is_unset(field)
            )
            return dict(fields)
        case OptionalValue(inner):
            return _rest_json(inner, under_rest=under_rest)
        case VapiFault():
            return _error(vapi_value, under_rest=under_rest)
        case MapValue(entries):
            entries_json = {key: _rest_json(map_value, under_rest=under_rest) for key, map_value in entries.items()}
            return (
                [{"key": key, "value": map_value} for key, map_value in entries_json.items()]
                if under_rest
                else entries_json
            )
        case list():
            return [_rest_json(element, under_rest=under_rest) for element in vapi_value]
        case _:
            return vapi_value


def _error(fault: VapiFault, *, under_rest: bool) -> dict[str, Any]:
    return {"error_type": fault.kind.upper(), "messages": [_rest_json(fault.message(), under_rest=under_rest)]}


def _is_unset(vapi_value: object) -> bool:
    return isinstance(vapi_value, OptionalValue) and vapi_value.value is None


_PARSE_ERROR: Final = -32700, "Parse error."
_INVALID_REQUEST: Final = -32600, "Invalid Request."
_INVALID_PARAMETERS: Final = -32602, "Invalid params."
"""Codes and texts of JSON-RPC 2.0 itself, for what is no call of an operation (JSON-RPC 2.0 specification)."""


def answer_rpc(services: VapiServices, body: bytes) -> tuple[int, bytes]:
    """Return (HTTP status, reply) of one JSON-RPC `invoke`.

    A VapiFault is returned as a result with `error`; an unreadable request is a JSON-RPC error.
    """
    try:
        request = parse_json(body)
    except ValueError:
        return _refusal(None, _PARSE_ERROR)
    if not isinstance(request, dict):
        return _refusal(None, _INVALID_REQUEST)
    request_id, parameters = request.get("id"), request.get("params")
    if not isinstance(parameters, dict):
        return _refusal(request_id, _INVALID_PARAMETERS)
    service, operation = parameters.get("serviceId"), parameters.get("operationId")
    if not isinstance(service, str) or not isinstance(operation, str):
        return _refusal(request_id, _INVALID_PARAMETERS)
    try:
        output = _invoke_rpc(services, service, operation, parameters)
        return _reply(request_id, {"output": _typed_json(output)})
    except VapiFault as fault:
        return _reply(request_id, {"error": _typed_error(fault)})


def _reply(request_id: object, result: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()


def _refusal(request_id: object, error: tuple[int, str]) -> tuple[int, bytes]:
    code, message = error
    return 400, json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}).encode()


def _invoke_rpc(services: VapiServices, service: str, operation: str, parameters: dict[str, Any]) -> Any:
    security = _dict(_dict(parameters.get("ctx")).get("securityCtx"))
    if service == SESSION and operation == "create":
        return services.log_in(_text(security.get("userName")), _text(security.get("password")))
    return services.invoke(_text(security.get("sessionId")), service, operation, _untyped(parameters.get("input")))


def _dict(vapi_value: object) -> dict[str, Any]:
    return vapi_value if isinstance(vapi_value, dict) else {}


def _text(vapi_value: object) -> str:
    return vapi_value if isinstance(vapi_value, str) else ""


def _untyped(vapi_value: Any) -> Any:
    """Return vAPI's typed JSON as plain JSON: no wrappers around structures and optionals; sets and maps stay lists."""
    match vapi_value:
        case {"STRUCTURE": dict(structure)}:
            fields = (field for field in structure.values() if isinstance(field, dict))
            return {name: _untyped(field) for named_fields in fields for name, field in named_fields.items()}
        case {"OPTIONAL": inner} | {"SECRET": inner}:
            return _untyped(inner)
        case list():
            return [_untyped(element) for element in vapi_value]
        case _:
            return vapi_value


def _typed_json(vapi_value: Any) -> Any:
    """Return the value as vAPI's typed JSON, with names around structures and optionals."""
    match vapi_value:
        case Struct():
            return {
                "STRUCTURE": {vapi_value.name: {name: _typed_json(field) for name, field in vapi_value.fields.items()}}
            }
        case OptionalValue(inner):
            return {"OPTIONAL": _typed_json(inner)}
        case VapiFault():
            return _typed_error(vapi_value)
        case MapValue(entries):
            return [
                _typed_json(Struct("map-entry", {"key": key, "value": map_value})) for key, map_value in entries.items()
            ]
        case list():
            return [_typed_json(element) for element in vapi_value]
        case _:
            return vapi_value


def _typed_error(fault: VapiFault) -> Any:
    fields = {
        "messages": [_typed_json(fault.message())],
        "data": {"OPTIONAL": None},
        "error_type": {"OPTIONAL": fault.kind.upper()},
    }
    return {"ERROR": {f"{ERRORS}.{fault.kind}": fields}}
