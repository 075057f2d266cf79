"""Requests over VI/JSON that no client sends: each gets a typed fault, none a bug of the simulator."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gpuops.sim.server import SimServer, start
from tests.sample import mostly_long
from tests.sim.objects.all_managers import ask_for_all
from tests.sim.wire.vi_json import COLLECTOR, JsonClient, object_spec, reference

REFUSALS = {"InvalidRequest", "InvalidType", "InvalidArgument"}
VM = "VirtualMachine", "vm-1007"
RETRIEVE = "PropertyCollector/propertyCollector/RetrievePropertiesEx"


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with start("lab", tls=False, clock="stepped") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: SimServer) -> JsonClient:
    return JsonClient(server).log_in()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"true",
        b"<xml/>",
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"specSet":' * 3_000,
        b'{"specSet":[' * 50_000,
        b'{"specSet": NaN}',
        b'{"specSet": 1e999}',
        b'{"specSet": ' + b"9" * 100_000 + b"}",
        b'{"\\ud800": 1}',
        b'{"specSet": "\\udfff"}',
        b'{"specSet": {}}',
        b'{"specSet": [null], "options": null}',
        b'{"specSet": [[]]}',
        b'{"specSet": [{"_typeName": "PropertyFilterSpec"}], "options": 7}',
        b'{"specSet": [{"_typeName": "ObjectSpec"}]}',
        b'{"specSet": [{"_typeName": "VirtualMachine"}]}',
        b'{"specSet": [{"_typeName": "int", "_value": 1}]}',
        b'{"specSet": [{"_typeName": null}]}',
        b'{"specSet": [{"_typeName": ["PropertyFilterSpec"]}]}',
        b'{"specSet": [{"_typeName": "PropertyFilterSpec", "__class__": 1}]}',
        b'{"specSet": [{"_typeName": "PropertyFilterSpec", "objectSet": [{"_typeName": "ObjectSpec", "obj": null}]}]}',
        b'{"specSet": [], "_this": 1}',
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_a_body_that_cannot_be_read(server: SimServer, client: JsonClient, body: bytes) -> None:
    reply = client.send("POST", RETRIEVE, body)
    assert reply.fault in REFUSALS, reply
    fault_text = reply.document["faultstring"]
    assert not any(sign in fault_text for sign in ("Traceback", "Error:", "object has no attribute"))
    assert server.world.bugs == []


def value(kind: str, content: object) -> dict[str, Any]:
    """An extra option with a value of any type."""
    option = {"_typeName": "OptionValue", "key": "a", "value": {"_typeName": kind, "_value": content}}
    return {"_typeName": "VirtualMachineConfigSpec", "extraConfig": [option]}


def spec(**fields: object) -> dict[str, Any]:
    return {"_typeName": "VirtualMachineConfigSpec", **fields}


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        7,
        [],
        spec(memoryMB="4096"),
        spec(memoryMB=True),
        spec(memoryMB=1 << 63),
        spec(memoryMB=10**400),
        spec(numCPUs=1 << 31),
        spec(numCPUs=1.5),
        spec(name=7),
        spec(name=["a"]),
        spec(name={"_typeName": "string", "_value": "a"}),
        spec(changeTrackingEnabled="true"),
        spec(changeTrackingEnabled=1),
        spec(createDate="yesterday"),
        spec(createDate="2026-99-99T00:00:00Z"),
        spec(createDate=7),
        spec(firmware={}),
        spec(powerOpInfo={"_typeName": "VirtualMachineFileInfo"}),
        spec(deviceChange=[{"_typeName": "VirtualDeviceConfigSpec", "operation": "conquer"}]),
        spec(deviceChange={"_typeName": "VirtualDeviceConfigSpec"}),
        spec(nothing=1),
        value("VirtualMachine", "vm-1"),
        value("Nothing", "a"),
        value("int", "7"),
        value("byte", 300),
        value("short", 1 << 15),
        value("binary", "%%"),
        value("dateTime", "now"),
        value("ArrayOfString", "a"),
        value("ArrayOfString", [7]),
        value("ArrayOfManagedObjectReference", [{"type": "Nothing", "value": "a"}]),
        spec(extraConfig=[{"_typeName": "OptionValue", "key": "a", "value": "bare"}]),
        spec(extraConfig=[{"_typeName": "OptionValue", "key": "a", "value": {"_typeName": "string"}}]),
    ],
    ids=lambda wrong: json.dumps(wrong)[:60],
)
def test_a_value_of_another_type(server: SimServer, client: JsonClient, wrong: object) -> None:
    vm = next(server.world.by_type("VirtualMachine"))
    reply = client.call("VirtualMachine", vm.moid, "ReconfigVM_Task", {"spec": wrong})
    assert reply.fault in REFUSALS, reply
    assert server.world.bugs == []


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("Nothing/vm-1/PowerOnVM_Task", "InvalidType"),
        ("VirtualMachine/vm-0/PowerOnVM_Task", "ManagedObjectNotFound"),
        ("VirtualMachine/%00/PowerOnVM_Task", "ManagedObjectNotFound"),
        ("VirtualMachine/%FF/PowerOnVM_Task", "ManagedObjectNotFound"),
        ("Folder/group-d1/PowerOnVM_Task", "MethodNotFound"),
        ("Folder/group-d1/__init__", "MethodNotFound"),
        ("Folder/group-d1/Fetch", "InvalidProperty"),
        ("Folder/group-d1/%22", "MethodNotFound"),
        ("SessionManager/SessionManager/Login", "InvalidArgument"),
    ],
)
def test_a_path_to_nothing(server: SimServer, client: JsonClient, path: str, fault: str) -> None:
    assert client.send("POST", path).fault == fault
    assert server.world.bugs == []


@pytest.mark.parametrize(
    "name", ["nothing", "__class__", "name.x", "childEntity[0]", "childEntity%5B%22a%22%5D", "%00"]
)
def test_a_property_that_is_none(server: SimServer, client: JsonClient, name: str) -> None:
    assert client.send("GET", f"Folder/group-d1/{name}").fault == "InvalidProperty"
    assert server.world.bugs == []


LEFT_OUT = {"Logout", "TerminateSession", "WaitForUpdates", "WaitForUpdatesEx"}
"""They end the session, or wait for what never comes."""


NOT_REACHED = {"MethodNotFound", "InvalidRequest", "SystemError"}


def test_every_method_is_reached_without_parameters() -> None:
    """Whatever SOAP dispatches is there: it runs, or misses a parameter, or is refused by a rule."""
    with start("lab", tls=False, clock="stepped") as server:
        client, replies = JsonClient(server).log_in(), {}
        for obj in list(ask_for_all(server.world).registry):
            for name in set(obj.methods) - LEFT_OUT:
                if (obj.wsdl_name, name) not in replies:
                    reply = client.call(obj.wsdl_name, obj.moid, name)
                    replies[obj.wsdl_name, name] = reply.fault or str(reply.status)
        assert [method for method, reply in replies.items() if reply in NOT_REACHED] == []
        assert len(replies) > 150
        assert server.world.bugs == []


WORDS = ("null", "true", "-1", "1e400", "[]", "{}", '""', '"\\ud800"', "9" * 40, '{"_typeName": "int", "_value": 1}')


def mutate_json(document: bytes, rng: random.Random) -> bytes:
    """One place of a JSON text changed: bytes, or a whole value."""
    at = rng.randrange(len(document))
    if rng.random() < 0.5:
        return document[:at] + rng.randbytes(rng.randrange(3)) + document[at + rng.randrange(4) :]
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            collect(node[key])

    tree = json.loads(document)
    collect(tree)
    node, key = rng.choice(places)
    node[key] = json.loads(rng.choice(WORDS))
    return json.dumps(tree).encode()


@pytest.mark.parametrize("seed", mostly_long(range(12), [0]))
def test_mutated_requests(server: SimServer, client: JsonClient, seed: int) -> None:
    rng = random.Random(seed)
    vm = next(server.world.by_type("VirtualMachine"))
    read = {"specSet": [object_spec(reference("VirtualMachine", vm.moid), ["name", "config"])]}
    change = {"spec": value("string", "b") | {"memoryMB": 2048, "deviceChange": []}}
    requests = [
        ("/".join((*COLLECTOR, "RetrievePropertiesEx")), {**read, "options": {"_typeName": "RetrieveOptions"}}),
        ("/".join((*COLLECTOR, "CreateFilter")), {"spec": read["specSet"][0], "partialUpdates": False}),
        (f"VirtualMachine/{vm.moid}/ReconfigVM_Task", change),
    ]
    for _ in range(100):
        path, document = rng.choice(requests)
        reply = client.send("POST", path, mutate_json(json.dumps(document).encode(), rng))
        assert reply.status in (200, 204, 500), reply
        assert reply.fault != "SystemError", reply
        assert server.world.bugs == []
