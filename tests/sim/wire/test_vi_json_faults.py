"""Injected trouble over VI/JSON: the rules are those of SOAP, and what a broken reply looks like is the wire's."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator

import pytest

from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer, start
from tests.sim.wire.vi_json import JsonClient, Reply, object_spec, reference, retrieve

BROKEN = (ConnectionError, http.client.HTTPException, ssl.SSLError)


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start("lab", clock="stepped") as running:
        yield running


@pytest.fixture
def client(server: SimServer) -> JsonClient:
    return JsonClient(server).log_in()


def read_current_time(client: JsonClient) -> Reply:
    return client.call("ServiceInstance", "ServiceInstance", "CurrentTime")


@pytest.mark.parametrize("effect", [Effect.RESET, Effect.CUT, Effect.EOF])
def test_a_connection_that_breaks(server: SimServer, client: JsonClient, effect: Effect) -> None:
    server.world.injector.add(Rule(effect, method="CurrentTime"))
    with pytest.raises(BROKEN):
        read_current_time(client)
    assert read_current_time(client).status == 200


def test_a_reply_that_never_comes(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.HANG, method="CurrentTime"))
    client.timeout_s = 0.3
    with pytest.raises(TimeoutError):
        read_current_time(client)


def test_half_a_reply_as_if_it_were_whole(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.TRUNCATED, method="CurrentTime"))
    with pytest.raises(json.JSONDecodeError):
        read_current_time(client)


def test_a_page_of_something_else(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.HTTP, method="CurrentTime", status=200, body="<html>It works!</html>"))
    with pytest.raises(json.JSONDecodeError):
        read_current_time(client)
    server.world.injector.add(Rule(Effect.HTTP, method="CurrentTime", status=503))
    assert read_current_time(client).status == 503


def test_a_reply_that_comes_a_byte_at_a_time(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.DRIP, method="CurrentTime", delay_s=0.001))
    assert read_current_time(client).status == 200


def test_the_reply_of_a_change_is_lost(server: SimServer, client: JsonClient) -> None:
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.read("runtime.powerState") == "poweredOff")
    server.world.injector.add(Rule(Effect.RESET, method="PowerOn*", phase=Phase.AFTER))
    with pytest.raises(BROKEN):
        client.call("VirtualMachine", vm.moid, "PowerOnVM_Task")
    assert [task.name for task in server.world.tasks.unfinished()] == ["PowerOnVM_Task"]


def test_named_faults_and_sessions_that_end(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.FAULT, method="CurrentTime", fault="HostNotReachable"))
    assert read_current_time(client).document == {
        "_typeName": "HostNotReachable",
        "faultstring": "HostNotReachable, as injected",
    }
    server.world.injector.add(Rule(Effect.EXPIRE, method="RetrievePropertiesEx"))
    spec = object_spec(reference("Folder", "group-d1"), ["name"])
    assert retrieve(client, spec).fault == "NotAuthenticated"
    assert retrieve(client.log_in(), spec).status == 200


def test_a_property_that_is_not_told(server: SimServer, client: JsonClient) -> None:
    server.world.injector.add(Rule(Effect.MISSING, property="name", fault="NoPermission", times=None))
    reply = retrieve(client, object_spec(reference("Folder", "group-d1"), ["name", "childType"]))
    (content,) = reply.document["objects"]
    assert [prop["name"] for prop in content["propSet"]] == ["childType"]
    (missing,) = content["missingSet"]
    assert (missing["_typeName"], missing["path"]) == ("MissingProperty", "name")
    assert missing["fault"]["_typeName"] == "NoPermission"
