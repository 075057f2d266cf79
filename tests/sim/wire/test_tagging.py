"""Tags over both wires: the real vSphere Automation SDK over JSON-RPC, and govc's REST calls."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gpuops.sim.server import SimServer
from gpuops.sim.wire.automation.rest import SESSION_HEADER
from tests.sim.lab import category_spec
from tests.sim.small_world import small_world
from tests.sim.wire.automation_clients import sdk_client

USER, PASSWORD = "administrator@vsphere.local", "s3cret"


@pytest.fixture
def server_with_tls() -> Iterator[SimServer]:
    """Over TLS: the SDK knows nothing else."""
    with SimServer(small_world(), username=USER, password=PASSWORD) as running:
        yield running
    assert running.world.bugs == []


@pytest.mark.long
def test_sdk_creates_attaches_and_lists_tags(server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sdk_client(server_with_tls, monkeypatch)
    from com.vmware.vapi.std_client import DynamicID

    category = client.tagging.Category.create(
        client.tagging.Category.CreateSpec(
            name="gpuops-role", description="", cardinality="SINGLE", associable_types={"VirtualMachine"}
        )
    )
    tag = client.tagging.Tag.create(
        client.tagging.Tag.CreateSpec(name="desktop", description="a parked desktop", category_id=category)
    )
    vm = DynamicID(type="VirtualMachine", id="vm-2")
    client.tagging.TagAssociation.attach(tag, vm)
    client.tagging.TagAssociation.attach(tag, vm)

    attached = client.tagging.TagAssociation.list_attached_tags_on_objects(
        [vm, DynamicID(type="VirtualMachine", id="vm-3")]
    )
    assert [(attached_object.object_id.id, attached_object.tag_ids) for attached_object in attached] == [
        ("vm-2", [tag])
    ]
    assert client.tagging.Tag.get(tag).name == "desktop"
    assert client.tagging.Category.get(category).associable_types == {"VirtualMachine"}
    assert [attached_object.id for attached_object in client.tagging.TagAssociation.list_attached_objects(tag)] == [
        "vm-2"
    ]
    (entry,) = server_with_tls.world.ledger
    assert (entry.method, entry.name, entry.user, entry.after) == ("attach", "ml-02", USER, {"tags": [tag]})


@pytest.mark.long
def test_sdk_detaches_and_deletes_what_it_made(server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sdk_client(server_with_tls, monkeypatch)
    from com.vmware.vapi.std.errors_client import AlreadyExists, InvalidArgument, NotFound
    from com.vmware.vapi.std_client import DynamicID

    tagging = client.tagging
    spec = tagging.Category.CreateSpec(name="role", description="", cardinality="SINGLE", associable_types=set())
    category = tagging.Category.create(spec)
    with pytest.raises(AlreadyExists):
        tagging.Category.create(spec)
    tag_ids = [
        tagging.Tag.create(tagging.Tag.CreateSpec(name=name, description="", category_id=category))
        for name in ("day", "night")
    ]
    vms = [DynamicID(type="VirtualMachine", id=moid) for moid in ("vm-1", "vm-2")]
    assert tagging.TagAssociation.attach_tag_to_multiple_objects(tag_ids[0], vms).success
    with pytest.raises(InvalidArgument):
        tagging.TagAssociation.attach(tag_ids[1], vms[0])
    assert tagging.TagAssociation.list_attached_tags(vms[0]) == [tag_ids[0]]
    tagging.Tag.update(tag_ids[0], tagging.Tag.UpdateSpec(name="noon"))
    assert sorted(tagging.Tag.get(tag_id).name for tag_id in tagging.Tag.list_tags_for_category(category)) == [
        "night",
        "noon",
    ]
    tagging.TagAssociation.detach(tag_ids[0], vms[0])
    assert [tag_id.id for tag_id in tagging.TagAssociation.list_attached_objects(tag_ids[0])] == ["vm-2"]
    tagging.Tag.delete(tag_ids[0])
    assert tagging.TagAssociation.list_attached_tags(vms[1]) == []
    tagging.Category.delete(category)
    assert (tagging.Category.list(), tagging.Tag.list()) == ([], [])
    with pytest.raises(NotFound):
        tagging.TagAssociation.attach(tag_ids[1], vms[0])


def test_sdk_has_a_session_and_ends_it(server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sdk_client(server_with_tls, monkeypatch)
    from com.vmware.cis_client import Session
    from com.vmware.vapi.std.errors_client import Unauthenticated

    session = Session(client._stub_config)
    assert session.get().user == USER
    session.delete()
    with pytest.raises(Unauthenticated):
        client.tagging.Tag.list()
    assert list(server_with_tls.world.sessions) == []


def test_sdk_meets_typed_errors(server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sdk_client(server_with_tls, monkeypatch)
    from com.vmware.vapi.std.errors_client import NotFound

    with pytest.raises(NotFound):
        client.tagging.Tag.get("urn:vmomi:InventoryServiceTag:none:GLOBAL")


@pytest.mark.long
def test_sdk_with_a_wrong_password_is_unauthenticated(
    server_with_tls: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from com.vmware.vapi.std.errors_client import Unauthenticated

    with pytest.raises(Unauthenticated):
        sdk_client(server_with_tls, monkeypatch, password="wrong")
    assert list(server_with_tls.world.sessions) == []


def _rest(server_with_tls: SimServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"https://127.0.0.1:{server_with_tls.port}/rest/com/vmware/cis/{path}",
        data=json.dumps(body).encode() if method == "POST" else None,
        headers=headers,
        method=method,
    )
    context = ssl.create_default_context(cafile=server_with_tls.ca_file)
    try:
        with urllib.request.urlopen(request, context=context) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.long
def test_rest_wire_answers_as_govc_asks(server_with_tls: SimServer) -> None:
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    _, session = _rest(server_with_tls, "POST", "session", {}, Authorization=f"Basic {basic}")
    token = {SESSION_HEADER: session["value"]}
    _, category = _rest(server_with_tls, "POST", "tagging/category", {"create_spec": category_spec("owner")}, **token)
    spec = {"name": "team-a", "description": "", "category_id": category["value"]}
    _, tag = _rest(server_with_tls, "POST", "tagging/tag", {"create_spec": spec}, **token)
    vm = {"object_id": {"type": "VirtualMachine", "id": "vm-1"}}
    attach = f"tagging/tag-association/id:{tag['value']}?~action=attach"
    assert _rest(server_with_tls, "POST", attach, vm, **token) == (200, {"value": None})
    assert _rest(server_with_tls, "POST", "tagging/tag-association?~action=list-attached-tags", vm, **token) == (
        200,
        {"value": [tag["value"]]},
    )
    status, tag_model = _rest(server_with_tls, "GET", f"tagging/tag/id:{tag['value']}", **token)
    assert (status, tag_model["value"]["name"]) == (200, "team-a")
    assert _rest(server_with_tls, "GET", "tagging/tag")[0] == 401
    assert _rest(server_with_tls, "GET", "tagging/tag/id:none", **token)[0] == 404
