"""JSON-RPC 2.0 with vAPI's typed values, on /api: the wire of the vSphere Automation SDKs (`vmware-vcenter`)."""

from __future__ import annotations

import json
from typing import Any, Final

from gpuops.files.file import parse_json
from gpuops.sim.vcenter.vapi_values import MapValue, OptionalValue, Struct, VapiFault
from gpuops.sim.wire.automation.services import ERRORS, SESSION, VapiServices

_PARSE_ERROR: Final = -32700, "Parse error."
_INVALID_REQUEST: Final = -32600, "Invalid Request."
_INVALID_PARAMETERS: Final = -32602, "Invalid params."
"""Codes and texts of JSON-RPC 2.0 itself, for what is no call of an operation (JSON-RPC 2.0 specification)."""


def answer(services: VapiServices, body: bytes) -> tuple[int, bytes]:
    """(HTTP status, reply) of one `invoke`; a vAPI error is its result, an unreadable request an error of JSON-RPC."""
    try:
        request = parse_json(body)
    except ValueError:
        return _refusal(None, _PARSE_ERROR)
    if not isinstance(request, dict):
        return _refusal(None, _INVALID_REQUEST)
    number, parameters = request.get("id"), request.get("params")
    if not isinstance(parameters, dict):
        return _refusal(number, _INVALID_PARAMETERS)
    service, operation = parameters.get("serviceId"), parameters.get("operationId")
    if not isinstance(service, str) or not isinstance(operation, str):
        return _refusal(number, _INVALID_PARAMETERS)
    try:
        output = _invoke(services, service, operation, parameters)
        return _reply(number, {"output": _typed_json(output)})
    except VapiFault as fault:
        return _reply(number, {"error": _typed_error(fault)})


def _reply(number: object, result: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()


def _refusal(number: object, error: tuple[int, str]) -> tuple[int, bytes]:
    code, message = error
    return 400, json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}).encode()


def _invoke(services: VapiServices, service: str, operation: str, parameters: dict[str, Any]) -> Any:
    security = _dict(_dict(parameters.get("ctx")).get("securityCtx"))
    if service == SESSION and operation == "create":
        return services.log_in(_text(security.get("userName")), _text(security.get("password")))
    return services.invoke(_text(security.get("sessionId")), service, operation, _plain(parameters.get("input")))


def _dict(vapi_value: object) -> dict[str, Any]:
    return vapi_value if isinstance(vapi_value, dict) else {}


def _text(vapi_value: object) -> str:
    return vapi_value if isinstance(vapi_value, str) else ""


def _plain(vapi_value: Any) -> Any:
    """vAPI's typed JSON as plain JSON: structures and optionals lose their wrappers, sets and maps stay lists."""
    match vapi_value:
        case {"STRUCTURE": dict(structure)}:
            fields = (field for field in structure.values() if isinstance(field, dict))
            return {name: _plain(field) for named in fields for name, field in named.items()}
        case {"OPTIONAL": inner} | {"SECRET": inner}:
            return _plain(inner)
        case list():
            return [_plain(element) for element in vapi_value]
        case _:
            return vapi_value


def _typed_json(vapi_value: Any) -> Any:
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
