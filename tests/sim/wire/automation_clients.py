"""Clients of the vSphere Automation API: the unmodified SDK over JSON-RPC, and plain HTTP for the REST wires."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

import pytest

from gpuops.sim.server import SimServer
from gpuops.sim.wire.automation.rest import SESSION_HEADER
from tests.sim.lab import category_spec

TAGGING = "/rest/com/vmware/cis/tagging"


def sdk_client(server: SimServer, monkeypatch: pytest.MonkeyPatch, password: str = "") -> Any:
    """The vmware-vcenter SDK with a session of its own. It knows nothing but TLS."""
    # requests prefers these variables to session.verify; the SDK's session must trust the test's certificate only
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    import requests
    from vmware.vapi.vsphere.client import create_vsphere_client

    session = requests.Session()
    session.verify = str(server.ca_file)
    at = f"127.0.0.1:{server.port}"
    return create_vsphere_client(at, server.username, password or server.password, session=session)


class Rest:
    """A client with a session; `None` as body sends none, bytes are sent as they are."""

    def __init__(self, server: SimServer, user: str = "") -> None:
        self.server = server
        self._connection = http.client.HTTPConnection(server.host, server.port)
        basic = base64.b64encode(f"{user or server.username}:{server.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {basic}"}
        _, session = self("POST", "/rest/com/vmware/cis/session")
        self._headers = {SESSION_HEADER: session["value"]}

    def __call__(self, verb: str, path: str, body: object = None) -> tuple[int, Any]:
        """(HTTP status, document)."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(verb, path, raw, self._headers)
        reply = self._connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None

    def close(self) -> None:
        self._connection.close()

    def moid(self, name: str, kind: str = "VirtualMachine") -> str:
        return str(next(obj.moid for obj in self.server.world.by_type(kind) if obj.name == name))

    def category(self, name: str, *types: str, cardinality: str = "MULTIPLE") -> str:
        spec = {"create_spec": category_spec(name, *types, cardinality=cardinality)}
        return str(self("POST", f"{TAGGING}/category", spec)[1]["value"])

    def tag(self, name: str, category: str) -> str:
        spec = {"create_spec": {"name": name, "description": "", "category_id": category}}
        return str(self("POST", f"{TAGGING}/tag", spec)[1]["value"])

    def attach(self, tag: str, kind: str, moid: str) -> tuple[int, Any]:
        path = f"{TAGGING}/tag-association/id:{tag}?~action=attach"
        return self("POST", path, {"object_id": {"type": kind, "id": moid}})

    def attached(self, tag: str) -> Any:
        """What `govc tags.rm` asks: its body is the JSON null."""
        return self("POST", f"{TAGGING}/tag-association/id:{tag}?~action=list-attached-objects", b"null\n")
