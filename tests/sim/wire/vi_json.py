"""A client of VI/JSON for tests: it sends documents and shows what comes back."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from gpuops.sim.server import SimServer

SESSION_HEADER = "vmware-api-session-id"
RELEASE = "8.0.3.0"
COLLECTOR = "PropertyCollector", "propertyCollector"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    document: Any
    headers: Mapping[str, str]

    @property
    def fault(self) -> str:
        """The type of the fault that it is, or ''."""
        return str(self.document["_typeName"]) if self.status == 500 else ""


@dataclass
class JsonClient:
    """Requests to one simulated vCenter, in one session once `log_in` was called."""

    server: SimServer
    release: str = RELEASE
    token: str = ""
    sent: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 60

    def log_in(self) -> JsonClient:
        login = {"userName": self.server.username, "password": self.server.password}
        reply = self.call("SessionManager", "SessionManager", "Login", login)
        assert reply.status == 200, reply
        self.token = reply.headers[SESSION_HEADER]
        return self

    def call(self, kind: str, moid: str, method: str, parameters: object = None) -> Reply:
        body = b"" if parameters is None else json.dumps(parameters).encode()
        return self.send("POST", f"{kind}/{moid}/{method}", body)

    def read(self, kind: str, moid: str, name: str) -> Reply:
        return self.send("GET", f"{kind}/{moid}/{name}")

    def send(self, verb: str, path: str, body: bytes = b"") -> Reply:
        headers = {"Content-Type": "application/json", **self.sent}
        headers |= {SESSION_HEADER: self.token} if self.token else {}
        with closing(self._connection()) as connection:
            connection.request(verb, f"/sdk/vim25/{self.release}/{path}", body, headers)
            reply = connection.getresponse()
            content = reply.read()
        reply_headers = {name.lower(): value for name, value in reply.headers.items()}
        is_json = reply_headers.get("content-type") == "application/json" and "content-encoding" not in reply_headers
        return Reply(reply.status, json.loads(content) if is_json else content, reply_headers)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.server.host, self.server.port
        if self.server.ca_file is None:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        trusted = ssl.create_default_context(cafile=self.server.ca_file)
        return http.client.HTTPSConnection(host, port, context=trusted, timeout=self.timeout_s)


def reference(kind: str, moid: str) -> dict[str, str]:
    """A ManagedObjectReference."""
    return {"_typeName": "ManagedObjectReference", "type": kind, "value": moid}


def view_spec(view: Mapping[str, str], kind: str, paths: list[str]) -> dict[str, Any]:
    """The PropertyFilterSpec of these properties of each object in a view."""
    traversal = {
        "_typeName": "TraversalSpec", "name": "view", "type": "ContainerView", "path": "view", "skip": False,
    }  # fmt: skip
    start = {"_typeName": "ObjectSpec", "obj": view, "skip": True, "selectSet": [traversal]}
    prop_spec = {"_typeName": "PropertySpec", "type": kind, "pathSet": paths}
    return {"_typeName": "PropertyFilterSpec", "propSet": [prop_spec], "objectSet": [start]}


def object_spec(ref: Mapping[str, str], paths: list[str]) -> dict[str, Any]:
    """The PropertyFilterSpec of these properties of one object."""
    prop_spec = {"_typeName": "PropertySpec", "type": ref["type"], "pathSet": paths}
    start = {"_typeName": "ObjectSpec", "obj": ref}
    return {"_typeName": "PropertyFilterSpec", "propSet": [prop_spec], "objectSet": [start]}


def retrieve(client: JsonClient, spec: Mapping[str, Any], **options: int) -> Reply:
    """A bulk read."""
    parameters = {"specSet": [spec], "options": {"_typeName": "RetrieveOptions", **options}}
    return client.call(*COLLECTOR, "RetrievePropertiesEx", parameters)
