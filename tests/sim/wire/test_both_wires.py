"""What VI/JSON says of each property of each object is what SOAP says, read by two decoders that share no code."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.fragments import resolve
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.server import SimServer, start
from tests.sample import every_nth, mostly_long
from tests.sim.lab import connect
from tests.sim.objects.all_managers import ask_for_all
from tests.sim.objects.test_every_property import VERSION, chosen
from tests.sim.wire.vi_json import COLLECTOR, JsonClient, reference
from tests.sim.wire.vi_json_values import decode

OF_THE_CALLER = {
    ("ServiceInstance", "serverClock"),
    ("Datastore", "info"),
    ("SessionManager", "currentSession"),
    ("SessionManager", "sessionList"),
}
"""What is another value at each read, such as the time in it."""


SCENARIOS = [
    ("lab", None),
    ("vdi", 3),
    ("scattered", 3),
    ("fleet:hosts=20", 3),
    ("vdi", None),
    ("scattered", None),
    ("fleet:hosts=100", None),
]


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "per_kind"), mostly_long(SCENARIOS, SCENARIOS[:2]))
def test_both_wires_say_the_same(scenario: str, per_kind: int | None) -> None:
    """Of whole scenarios a third of the objects a run, but of `lab`, which is always asked for all."""
    with start(scenario, tls=False, clock="stepped") as server:
        ask_for_all(server.world)
        with both_wires(server) as (client, si):
            objects = list(chosen(server.world, per_kind))
            part = 1 if per_kind or scenario == "lab" else 3
            compared = compare(client, si, every_nth(objects, part))
        assert compared > 400 / part
        assert server.world.bugs == []


@pytest.mark.long
@pytest.mark.parametrize("seed", mostly_long(range(4), [0]))
def test_both_wires_say_the_same_after_changes(seed: int) -> None:
    """What was kept for one wire goes when a call over the other one changes it."""
    rng = random.Random(seed)
    with start("lab", tls=False, clock="stepped") as server, both_wires(server) as (client, si):
        vms = list(server.world.by_type("VirtualMachine"))
        hosts = list(server.world.by_type("HostSystem"))
        for _ in range(3):
            compare(client, si, vms + hosts)
            for vm in rng.sample(vms, 6):
                change(rng, client, si, vm)
            with server.world.lock:
                server.world.clock.advance(120)
        compare(client, si, vms + hosts)
        assert server.world.bugs == []


@contextlib.contextmanager
def both_wires(server: SimServer) -> Iterator[tuple[JsonClient, Any]]:
    """A client of each wire, logged in."""
    si = connect(server)
    try:
        yield JsonClient(server).log_in(), si
    finally:
        Disconnect(si)


def change(rng: random.Random, client: JsonClient, si: Any, vm: ManagedObject) -> None:
    """One change of a VM; whether vCenter refuses it is all one."""
    spec = {"_typeName": "VirtualMachineConfigSpec", "annotation": f'"{rng.random()}" <\u00e9>', "memoryMB": 4096}
    spec["extraConfig"] = [
        {"_typeName": "OptionValue", "key": "a.b", "value": {"_typeName": "string", "_value": str(rng.random())}}
    ]
    remote = vmomi_type("VirtualMachine")(vm.moid, si._stub)
    with contextlib.suppress(vmodl.MethodFault):
        rng.choice(
            [
                lambda: client.call("VirtualMachine", vm.moid, "PowerOnVM_Task"),
                lambda: client.call("VirtualMachine", vm.moid, "ReconfigVM_Task", {"spec": spec}),
                lambda: client.call("VirtualMachine", vm.moid, "Rename_Task", {"newName": f"n{rng.random()}"}),
                remote.PowerOnVM_Task,
                remote.PowerOffVM_Task,
                remote.SuspendVM_Task,
            ]
        )()


def compare(client: JsonClient, si: Any, objects: Sequence[ManagedObject]) -> int:
    """The number of properties that both wires told, all alike."""
    by_kind = defaultdict(list)
    for obj in objects:
        by_kind[obj.wsdl_name].append(obj)
    different, compared = [], 0
    for kind, alike in by_kind.items():
        soap, json = over_soap(si, alike), over_json(client, alike)
        assert list(soap) == list(json) == [obj.moid for obj in alike]
        for moid, soap_properties in soap.items():
            assert list(json[moid]) == list(soap_properties), (kind, moid)
            different += [
                f"{kind} {moid} {name}"
                for name in soap_properties
                if (kind, name) not in OF_THE_CALLER
                and format_value(soap_properties[name]) != format_value(json[moid][name])
            ]
            compared += len(soap_properties)
        different += [f"GET {kind} {name}" for name in one_by_one(client, alike[0])]
    assert different == []
    return compared


def over_soap(si: Any, objects: list[ManagedObject]) -> dict[str, dict[str, Any]]:
    collector = vmodl.query.PropertyCollector
    kind = vmomi_type(objects[0].wsdl_name)
    spec = collector.FilterSpec(
        propSet=[collector.PropertySpec(type=kind, all=True)],
        objectSet=[collector.ObjectSpec(obj=vmomi_type(obj.wsdl_name)(obj.moid)) for obj in objects],
    )
    contents = si.content.propertyCollector.RetrieveProperties([spec])
    assert [content.missingSet for content in contents] == [[] for _ in contents]
    return {content.obj._moId: {prop.name: prop.val for prop in content.propSet} for content in contents}


def over_json(client: JsonClient, objects: list[ManagedObject]) -> dict[str, dict[str, Any]]:
    contents = decode(retrieve_contents(client, objects), vmodl.query.PropertyCollector.ObjectContent.Array)
    assert [content.missingSet for content in contents] == [[] for _ in contents]
    return {content.obj._moId: {prop.name: prop.val for prop in content.propSet} for content in contents}


def retrieve_contents(client: JsonClient, objects: list[ManagedObject]) -> list[Any]:
    kind = objects[0].wsdl_name
    spec = {
        "_typeName": "PropertyFilterSpec",
        "propSet": [{"_typeName": "PropertySpec", "type": kind, "all": True}],
        "objectSet": [{"_typeName": "ObjectSpec", "obj": reference(kind, obj.moid)} for obj in objects],
    }
    reply = client.call(*COLLECTOR, "RetrieveProperties", {"specSet": [spec]})
    assert reply.status == 200, reply
    contents: list[Any] = reply.document
    return contents


def one_by_one(client: JsonClient, obj: ManagedObject) -> Iterator[str]:
    """What GET says otherwise than the bulk read does: that one puts simple values and arrays in a box."""
    (content,) = retrieve_contents(client, [obj])
    for prop in content.get("propSet", ()):
        name, value = prop["name"], prop["val"]
        read = client.read(obj.wsdl_name, obj.moid, name)
        bare = value["_value"] if set(value) == {"_typeName", "_value"} else value
        if read.status != 200 or (read.document != bare and (obj.wsdl_name, name) not in OF_THE_CALLER):
            yield f"{name}: {read}"
        decode(read.document, resolve(obj.wsdl_name, name, VERSION).declared_type)


def format_value(value: Any) -> str:
    return str(VmomiSupport.FormatObject(value)).replace("(vmodl.DynamicData) []", "")
