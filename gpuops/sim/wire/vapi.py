"""The vSphere Automation API's two wires, in front of the tag store: JSON-RPC on /api, REST on /rest.

`vmware-vcenter` speaks JSON-RPC 2.0 with vAPI's typed values; govc speaks REST under /rest with `~action` queries.
Both authenticate against the same vCenter account and get a `vmware-api-session-id`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from gpuops.sim.vcenter.tagging import Struct, TagFault, TagStore

SESSION_HEADER: Final = "vmware-api-session-id"
_SESSION: Final = "com.vmware.cis.session"
_ERRORS: Final = "com.vmware.vapi.std.errors"
_REST: Final = "/rest/com/vmware/cis/"
_STATUS: Final = {"not_found": 404, "already_exists": 400, "invalid_argument": 400, "operation_not_found": 404}


class VapiEndpoint:
    """Both wires of one simulated vCenter."""

    def __init__(
        self,
        store: TagStore,
        *,
        login: Callable[[str, str], str | None],
        is_active: Callable[[str], bool],
        logout: Callable[[str], None],
    ) -> None:
        """`login(user, password)` answers a session id, or None when it is refused."""
        self._store = store
        self._login = login
        self._is_active = is_active
        self._logout = logout

    # -- JSON-RPC

    def rpc(self, body: bytes) -> bytes:
        """The JSON-RPC reply to one `invoke`."""
        request = json.loads(body)
        parameters = request["params"]
        service, operation = parameters["serviceId"], parameters["operationId"]
        try:
            output = self._invoke_rpc(service, operation, parameters)
            result: dict[str, Any] = {"output": _typed(output)}
        except TagFault as fault:
            result = {"error": _typed_error(fault)}
        return json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": result}).encode()

    def _invoke_rpc(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        security = (parameters.get("ctx") or {}).get("securityCtx") or {}
        if service == _SESSION and operation == "create":
            return self._open(security.get("userName", ""), security.get("password", ""))
        session = security.get("sessionId", "")
        if not self._is_active(session):
            raise TagFault("unauthenticated", "This method requires authentication.")
        if service == _SESSION:
            return self._session(operation, session)
        return self._store.invoke(service, operation, _plain(parameters["input"]))

    # -- REST

    def rest(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """(HTTP status, JSON document) of one REST call; the document is None for an empty reply.

        The names of `headers` are in lower case.
        """
        url = urlsplit(target)
        try:
            return 200, self._invoke_rest(method, url.path, parse_qs(url.query), headers, body)
        except TagFault as fault:
            status = 401 if fault.kind == "unauthenticated" else _STATUS.get(fault.kind, 400)
            message = {"id": f"vapi.{fault.kind}", "default_message": str(fault), "args": []}
            return status, {"type": f"{_ERRORS}.{fault.kind}", "value": {"messages": [message]}}

    def _invoke_rest(
        self, method: str, path: str, query: Mapping[str, list[str]], headers: Mapping[str, str], body: bytes
    ) -> Any:
        resource, _, identity = path.removeprefix(_REST).partition("/id:")
        action = query.get("~action", [""])[0]
        if resource == "session" and method == "POST" and action != "get":
            return {"value": self._open(*_basic_credentials(headers.get("authorization", "")))}
        session = headers.get(SESSION_HEADER, "")
        if not self._is_active(session):
            raise TagFault("unauthenticated", "This method requires authentication.")
        if resource == "session":
            return {"value": _untyped(self._session("delete" if method == "DELETE" else "get", session))}
        if not path.startswith(_REST + "tagging/"):
            raise TagFault("operation_not_found", f"no resource {path}")
        name = resource.removeprefix("tagging/")
        parameters = json.loads(body) if body else {}
        if identity:
            key = "category_id" if name == "category" or action == "list-tags-for-category" else "tag_id"
            parameters[key] = identity
        operation = action or {"GET": "get" if identity else "list", "POST": "create"}.get(method, "")
        operation = operation or {"PATCH": "update", "DELETE": "delete"}.get(method, method)
        value = self._store.invoke(f"com.vmware.cis.tagging.{name}", operation, parameters)
        return {"value": _untyped(value)}

    # -- sessions

    def _open(self, user: str, password: str) -> str:
        session = self._login(user, password)
        if session is None:
            raise TagFault("unauthenticated", "Authentication required.")
        return session

    def _session(self, operation: str, session: str) -> Any:
        if operation == "delete":
            self._logout(session)
            return None
        if operation == "get":
            stamp = "1970-01-01T00:00:00.000Z"
            return Struct(f"{_SESSION}.info", {"user": "", "created_time": stamp, "last_accessed_time": stamp})
        raise TagFault("operation_not_found", f"no operation {operation} in {_SESSION}")


def _basic_credentials(header: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(header.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    user, _, password = decoded.partition(":")
    return user, password


def _plain(value: Any) -> Any:
    """vAPI's typed JSON as plain JSON: structures and optionals lose their wrappers."""
    match value:
        case {"STRUCTURE": structure}:
            return {name: _plain(each) for fields in structure.values() for name, each in fields.items()}
        case {"OPTIONAL": inner} | {"SECRET": inner}:
            return _plain(inner)
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def _typed(value: Any) -> Any:
    match value:
        case Struct():
            return {"STRUCTURE": {value.name: {name: _typed(each) for name, each in value.fields.items()}}}
        case list():
            return [_typed(each) for each in value]
        case _:
            return value


def _untyped(value: Any) -> Any:
    match value:
        case Struct():
            return {name: _untyped(each) for name, each in value.fields.items()}
        case list():
            return [_untyped(each) for each in value]
        case _:
            return value


def _typed_error(fault: TagFault) -> Any:
    message = {"id": f"vapi.{fault.kind}", "default_message": str(fault), "args": []}
    fields = {
        "messages": [_typed(Struct("com.vmware.vapi.std.localizable_message", message))],
        "data": {"OPTIONAL": None},
    }
    return {"ERROR": {f"{_ERRORS}.{fault.kind}": fields}}
