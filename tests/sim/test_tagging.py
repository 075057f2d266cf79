"""Tags over both wires: the real vSphere Automation SDK over JSON-RPC, and govc's REST calls."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import random
import ssl
import threading
import urllib.error
import urllib.request
import uuid
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpuops.sim.tagging import Object, TagStore
from gpuops.sim.vapi import SESSION_HEADER, VapiEndpoint

USER, PASSWORD = "administrator@vsphere.local", "s3cret"


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tagging test")])
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a certificate needs the real time
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class World:
    """The endpoint behind a TLS socket, and what it wrote to its ledger."""

    def __init__(self, folder: Path) -> None:
        self.ledger: list[tuple[str, Object, str]] = []
        self.sessions: set[str] = set()
        seeded = random.Random(7)
        store = TagStore(lambda: uuid.UUID(int=seeded.getrandbits(128)), lambda *entry: self.ledger.append(entry))
        self.endpoint = VapiEndpoint(
            store, login=self._login, is_active=self.sessions.__contains__, logout=self.sessions.discard
        )
        self.certificate = _certificate(folder)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def _login(self, user: str, password: str) -> str | None:
        if (user, password) != (USER, PASSWORD):
            return None
        session = f"session-{len(self.sessions)}"
        self.sessions.add(session)
        return session

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self.endpoint

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.path == "/api":
                    self._answer(200, endpoint.rpc(body))
                else:
                    status, document = endpoint.rest(self.command, self.path, dict(self.headers), body)
                    self._answer(status, json.dumps(document).encode())

            def do_GET(self) -> None:
                status, document = endpoint.rest(self.command, self.path, dict(self.headers), b"")
                self._answer(status, json.dumps(document).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    thread = threading.Thread(target=world.server.serve_forever)
    thread.start()
    try:
        yield world
    finally:
        world.server.shutdown()
        world.server.server_close()
        thread.join()


def _sdk_client(world: World, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> Any:
    # requests prefers these variables to session.verify; the SDK's session must trust the test's certificate only
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's own modules warn at import
        import requests
        from vmware.vapi.vsphere.client import create_vsphere_client

        session = requests.Session()
        session.verify = str(world.certificate)
        return create_vsphere_client(world.address, USER, password, session=session)


def test_sdk_creates_attaches_and_lists_tags(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = _sdk_client(world, monkeypatch)
    from com.vmware.vapi.std_client import DynamicID

    category = client.tagging.Category.create(
        client.tagging.Category.CreateSpec(
            name="gpuops-role", description="", cardinality="SINGLE", associable_types={"VirtualMachine"}
        )
    )
    tag = client.tagging.Tag.create(
        client.tagging.Tag.CreateSpec(name="desktop", description="a parked desktop", category_id=category)
    )
    vm = DynamicID(type="VirtualMachine", id="vm-42")
    client.tagging.TagAssociation.attach(tag, vm)
    client.tagging.TagAssociation.attach(tag, vm)

    attached = client.tagging.TagAssociation.list_attached_tags_on_objects(
        [vm, DynamicID(type="VirtualMachine", id="vm-43")]
    )
    assert [(each.object_id.id, each.tag_ids) for each in attached] == [("vm-42", [tag])]
    assert client.tagging.Tag.get(tag).name == "desktop"
    assert client.tagging.Category.get(category).associable_types == {"VirtualMachine"}
    assert [each.id for each in client.tagging.TagAssociation.list_attached_objects(tag)] == ["vm-42"]
    assert world.ledger == [("attach", ("VirtualMachine", "vm-42"), tag)]


def test_sdk_meets_typed_errors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = _sdk_client(world, monkeypatch)
    from com.vmware.vapi.std.errors_client import NotFound

    with pytest.raises(NotFound):
        client.tagging.Tag.get("urn:vmomi:InventoryServiceTag:none:GLOBAL")


def test_sdk_with_a_wrong_password_is_unauthenticated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from com.vmware.vapi.std.errors_client import Unauthenticated

    with pytest.raises(Unauthenticated):
        _sdk_client(world, monkeypatch, password="wrong")
    assert world.sessions == set()


def _rest(world: World, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"https://{world.address}/rest/com/vmware/cis/{path}",
        data=json.dumps(body).encode() if method == "POST" else None,
        headers=headers,
        method=method,
    )
    context = ssl.create_default_context(cafile=str(world.certificate))
    try:
        with urllib.request.urlopen(request, context=context) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_rest_wire_answers_as_govc_asks(world: World) -> None:
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    _, session = _rest(world, "POST", "session", {}, Authorization=f"Basic {basic}")
    token = {SESSION_HEADER: session["value"]}
    _, category = _rest(world, "POST", "tagging/category", {"create_spec": {"name": "owner"}}, **token)
    spec = {"name": "team-a", "category_id": category["value"]}
    _, tag = _rest(world, "POST", "tagging/tag", {"create_spec": spec}, **token)
    vm = {"object_id": {"type": "VirtualMachine", "id": "vm-7"}}
    attach = f"tagging/tag-association/id:{tag['value']}?~action=attach"
    assert _rest(world, "POST", attach, vm, **token) == (200, {"value": None})
    assert _rest(world, "POST", "tagging/tag-association?~action=list-attached-tags", vm, **token) == (
        200,
        {"value": [tag["value"]]},
    )
    status, shown = _rest(world, "GET", f"tagging/tag/id:{tag['value']}", **token)
    assert (status, shown["value"]["name"]) == (200, "team-a")
    assert _rest(world, "GET", "tagging/tag")[0] == 401
    assert _rest(world, "GET", "tagging/tag/id:none", **token)[0] == 404
