"""VI/JSON of the simulated vCenter: login, reads, faults, and who gets it at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer, start
from tests.sim.wire.vi_json import (
    COLLECTOR,
    SESSION_HEADER,
    JsonClient,
    Reply,
    object_spec,
    reference,
    retrieve,
    view_spec,
)


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with start("lab", clock="stepped") as running:
        yield running


@pytest.fixture
def client(server: SimServer) -> JsonClient:
    return JsonClient(server).log_in()


def view_of(client: JsonClient, *kinds: str) -> dict[str, str]:
    parameters = {"container": reference("Folder", "group-d1"), "type": list(kinds), "recursive": True}
    view: dict[str, str] = client.call("ViewManager", "ViewManager", "CreateContainerView", parameters).document
    return view


def names(reply: Reply) -> list[str]:
    return [content["propSet"][0]["val"]["_value"] for content in reply.document["objects"]]


def test_the_content_is_read_without_a_login(server: SimServer) -> None:
    called = JsonClient(server).call(
        "ServiceInstance", "ServiceInstance", "RetrieveServiceContent", {"_this": reference("ServiceInstance", "x")}
    )
    assert called.fault == "InvalidRequest"  # `_this` is in the path
    called = JsonClient(server).call("ServiceInstance", "ServiceInstance", "RetrieveServiceContent")
    got = JsonClient(server).read("ServiceInstance", "ServiceInstance", "content")
    assert called.document == got.document
    assert got.document["_typeName"] == "ServiceContent"
    assert got.document["about"]["apiVersion"] == "8.0.3.0"
    assert got.document["rootFolder"] == reference("Folder", "group-d1")
    assert got.headers["content-type"] == "application/json"


def test_a_login_is_a_session_of_all_wires(server: SimServer) -> None:
    client = JsonClient(server)
    wrong = client.call("SessionManager", "SessionManager", "Login", {"userName": server.username, "password": "no"})
    assert (wrong.status, wrong.fault, SESSION_HEADER in wrong.headers) == (500, "InvalidLogin", False)
    assert wrong.document["faultstring"].startswith("Cannot complete login")
    client.log_in()
    assert server.world.sessions.find(client.token) is not None
    current = client.read("SessionManager", "SessionManager", "currentSession").document
    assert (current["_typeName"], current["userName"]) == ("UserSession", server.username)
    assert client.call("SessionManager", "SessionManager", "Logout").status == 204
    assert server.world.sessions.find(client.token) is None
    assert client.read("Folder", "group-d1", "name").fault == "NotAuthenticated"


def test_the_token_of_the_automation_api_is_accepted(server: SimServer) -> None:
    with server.world.lock:
        token = server.world.sessions.open(server.username).cookie
    assert JsonClient(server, token=token).read("Folder", "group-d1", "name").document == "Datacenters"


@pytest.mark.long
def test_a_property_has_its_declared_type(client: JsonClient, server: SimServer) -> None:
    assert client.read("Folder", "group-d1", "childType").document == ["Folder", "Datacenter"]
    assert client.read("Folder", "group-d1", "parent").status == 204
    assert client.read("Folder", "group-d1", "overallStatus").document == "green"
    time = client.call("ServiceInstance", "ServiceInstance", "CurrentTime").document
    assert isinstance(time, str)
    assert time[10] == "T"
    (vm, *_) = client.call("ContainerView", view_of(client, "VirtualMachine")["value"], "DestroyView"), None
    assert vm.status == 204
    assert client.read("Folder", "group-d1", "summary").fault == "InvalidProperty"
    assert client.read("Folder", "group-d1", "name.x").fault == "InvalidProperty"


def test_a_bulk_read_in_pages(client: JsonClient, server: SimServer) -> None:
    view = view_of(client, "VirtualMachine")
    spec = view_spec(view, "VirtualMachine", ["name"])
    whole = retrieve(client, spec)
    page = retrieve(client, spec, maxObjects=5)
    names_read = names(page)
    while "token" in page.document:
        assert len(page.document["objects"]) == 5
        page = client.call(*COLLECTOR, "ContinueRetrievePropertiesEx", {"token": page.document["token"]})
        names_read += names(page)
    assert names_read == names(whole) == [vm.display_name for vm in server.world.by_type("VirtualMachine")]
    assert whole.document["_typeName"] == "RetrieveResult"
    first = whole.document["objects"][0]
    assert first["_typeName"] == "ObjectContent"
    assert first["obj"]["type"] == "VirtualMachine"
    assert first["propSet"] == [
        {"_typeName": "DynamicProperty", "name": "name", "val": {"_typeName": "string", "_value": names_read[0]}}
    ]


def test_values_of_any_type_name_their_type(client: JsonClient) -> None:
    paths = ["name", "runtime.powerState", "config.hardware.memoryMB", "datastore", "config.hardware"]
    spec = view_spec(view_of(client, "VirtualMachine"), "VirtualMachine", paths)
    reply = retrieve(client, spec)
    read = {prop["name"]: prop["val"] for prop in reply.document["objects"][0]["propSet"]}
    kinds = {path: value["_typeName"] for path, value in read.items()}
    assert kinds == {
        "name": "string",
        "runtime.powerState": "VirtualMachinePowerState",
        "config.hardware.memoryMB": "int",
        "datastore": "ArrayOfManagedObjectReference",
        "config.hardware": "VirtualHardware",
    }
    devices: list[dict[str, Any]] = read["config.hardware"]["device"]
    assert {device["_typeName"] for device in devices} > {"VirtualDisk", "VirtualIDEController"}


def test_an_object_that_is_gone(server: SimServer, client: JsonClient) -> None:
    vm = next(server.world.by_type("VirtualMachine"))
    spec = object_spec(reference("VirtualMachine", vm.moid), ["name"])
    assert names(retrieve(client, spec)) == [vm.display_name]
    reply = retrieve(client, object_spec(reference("VirtualMachine", "vm-0"), ["name"]))
    assert reply.document["_typeName"] == "ManagedObjectNotFound"
    assert reply.document["obj"] == reference("VirtualMachine", "vm-0")
    assert isinstance(reply.document["faultstring"], str)


def test_a_fault_in_a_field_is_the_fault_itself(server: SimServer, client: JsonClient) -> None:
    """As vCenter 8.0.3 writes TaskInfo.error: without the LocalizedMethodFault around it that SOAP has."""
    host = next(server.world.by_type("HostSystem"))
    started = client.call("HostSystem", host.moid, "ExitMaintenanceMode_Task", {"timeout": 0})
    with server.world.lock:
        server.world.clock.advance(60)
    info = client.read("Task", started.document["value"], "info").document
    assert info["state"] == "error"
    assert info["error"] == {"_typeName": "InvalidState", "faultstring": "The host is not in maintenance mode."}


def test_a_data_object_says_what_it_is(client: JsonClient) -> None:
    """vCenter 8.0.3 takes an object without `_typeName` for a reference."""
    spec = object_spec(reference("Folder", "group-d1"), ["name"])
    spec["propSet"] = [{"type": "Folder", "pathSet": ["name"]}]
    refused = retrieve(client, spec)
    assert (refused.status, refused.fault) == (500, "InvalidArgument")
    assert refused.document["faultstring"].startswith("Invalid MoRef field: ")
    del spec["objectSet"][0]["obj"]["_typeName"]
    spec["propSet"][0]["_typeName"] = "PropertySpec"
    assert names(retrieve(client, spec)) == ["Datacenters"]


def test_large_replies_are_compressed_for_who_accepts_it(client: JsonClient) -> None:
    spec = view_spec(view_of(client, "VirtualMachine"), "VirtualMachine", ["name", "config"])
    plain = retrieve(client, spec)
    client.sent["Accept-Encoding"] = "gzip"
    packed = retrieve(client, spec)
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.document)) == plain.document


@pytest.mark.parametrize("release", ["8.0.1.0", "8.0.2.0", "8.0.3.0"])
def test_releases_that_are_served(server: SimServer, release: str) -> None:
    assert JsonClient(server, release=release).read("ServiceInstance", "ServiceInstance", "content").status == 200


@pytest.mark.parametrize("release", ["7.0.3.0", "8.0.0.1", "9.0.0.0", "8.0.3.9", "x", ""])
def test_releases_that_are_not(server: SimServer, release: str) -> None:
    assert JsonClient(server, release=release).read("ServiceInstance", "ServiceInstance", "content").status == 404


@pytest.mark.parametrize("version", ["7.0.3.0", "8.0.0.1"])
def test_an_older_vcenter_has_no_vi_json(version: str) -> None:
    with start(build("lab", api_version=version), clock="stepped") as server:
        for release in (version, "8.0.1.0"):
            client = JsonClient(server, release=release)
            assert client.read("ServiceInstance", "ServiceInstance", "content").status == 404
            assert client.call("SessionManager", "SessionManager", "Login").status == 404


def test_newer_fields_are_not_told_to_an_older_release(server: SimServer) -> None:
    """HostCapability has fields that came with 8.0.2.0 or later."""
    newer = {
        info.name for info in vim.host.Capability._GetPropertyList() if info.version.startswith("vim.version.v8_0_3")
    }
    fields_by_release: dict[str, set[str]] = {}
    for release in ("8.0.1.0", "8.0.3.0"):
        client = JsonClient(server, release=release).log_in()
        host = next(server.world.by_type("HostSystem"))
        fields_by_release[release] = set(client.read("HostSystem", host.moid, "capability").document)
    assert fields_by_release["8.0.1.0"].isdisjoint(newer)
