"""pyVmomi reads every property of every object: the declared names come from its own type tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lxml import etree
from pyVim.connect import Disconnect
from pyVmomi import SoapAdapter, VmomiSupport

from gpuops.sim.core.encoder import encoder
from gpuops.sim.core.fragments import resolve, top_level, typed, value_of
from gpuops.sim.core.managed_object import UNSET, ManagedObject
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.server import start
from gpuops.sim.world import World
from tests.sim.lab import connect
from tests.sim.objects.all_managers import ask_for_all
from tests.sim.objects.test_property_collector import spec_of_object

VERSION = "vim.version.v8_0_3_0"


def chosen(world: World, per_kind: int | None) -> Iterator[ManagedObject]:
    counts: dict[str, int] = {}
    for obj in world.registry:
        counts[obj.wsdl_name] = counts.get(obj.wsdl_name, 0) + 1
        if per_kind is None or counts[obj.wsdl_name] <= per_kind:
            yield obj


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("scenario", "per_kind"),
    [("lab", None), ("training", 1), pytest.param("vdi", None, marks=pytest.mark.long), ("fleet:hosts=20", 2)],
)
def test_every_property_of_every_object_is_readable(scenario: str, per_kind: int | None) -> None:
    with start(scenario, tls=False, clock="stepped") as server:
        si = connect(server)
        ask_for_all(server.world)
        unreadable = []
        for obj in chosen(server.world, per_kind):
            remote = vmomi_type(obj.wsdl_name)(obj.moid, si._stub)
            unreadable += [f"{obj.wsdl_name} {obj.moid} {property_name}" for property_name in _unreadable(si, remote)]
        Disconnect(si)
        assert unreadable == []
        assert server.world.bugs == []


@pytest.mark.long
@pytest.mark.parametrize("version", ["8.0.2.0", "8.0.3.0", "9.0.0.0", "9.1.0.0"])
def test_every_property_is_readable_at_every_version(version: str) -> None:
    with start("supervisor", tls=False, clock="stepped", api_version=version) as server:
        si = connect(server)
        ask_for_all(server.world)
        assert (si.content.about.apiVersion, si._stub.version) == (version, VmomiSupport.versionMap[f"vim25/{version}"])
        unreadable = []
        for obj in chosen(server.world, 1):
            remote = vmomi_type(obj.wsdl_name)(obj.moid, si._stub)
            unreadable += [f"{obj.wsdl_name} {obj.moid} {property_name}" for property_name in _unreadable(si, remote)]
        Disconnect(si)
        assert unreadable == []
        assert server.world.bugs == []


def _unreadable(si: Any, obj: Any) -> Iterator[str]:
    """What a bulk read of all properties and one Fetch of each cannot read."""
    (content,) = si.content.propertyCollector.RetrieveProperties([spec_of_object(obj, everything=True)])
    yield from (f"{missing.path}: {missing.fault.msg}" for missing in content.missingSet)
    bulk = {prop.name: prop.val for prop in content.propSet}
    for name in top_level(type(obj)._wsdlName, si._stub.version):
        try:
            fetched = getattr(obj, name)
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {error}"
            continue
        if name in bulk and not _volatile(obj, name) and _plain(fetched) != _plain(bulk[name]):
            yield f"{name}: Fetch and RetrieveProperties differ"


def _volatile(obj: Any, name: str) -> bool:
    return (type(obj)._wsdlName, name) in {("ServiceInstance", "serverClock"), ("SessionManager", "sessionList")} or (
        type(obj)._wsdlName == "SessionManager" and name == "currentSession"
    )


def _plain(value: Any) -> str:
    return VmomiSupport.FormatObject(value).replace("(vmodl.DynamicData) []", "")


@pytest.mark.long
def test_the_encoder_agrees_with_pyvmomis_serialiser() -> None:
    """Ours is compiled for speed; on a whole scenario it must write what pyVmomi's own would."""
    info = VmomiSupport.Object(name="val", type=object, version=VERSION, flags=0)
    namespaces = {SoapAdapter.XMLNS_XSI: "xsi", SoapAdapter.XMLNS_XSD: "xsd", "urn:vim25": ""}
    compared = 0
    with start("lab", tls=False, clock="stepped") as server:
        ask_for_all(server.world)
        for obj in server.world.registry:
            for name in top_level(obj.wsdl_name, VERSION):
                value, static = value_of(obj, resolve(obj.wsdl_name, name, VERSION))
                if value is UNSET:
                    continue
                ready = typed(value, static)
                ready = ready.ref if isinstance(ready, ManagedObject) else ready
                theirs = SoapAdapter.SerializeToStr(ready, info, VERSION, dict(namespaces))
                ours = encoder(VERSION).element("val", ready)
                assert _canonical(ours) == _canonical(theirs), f"{obj.wsdl_name}.{name}"
                compared += 1
    assert compared > 500


def _canonical(element: str) -> bytes:
    """The element without what only a document's first element carries, and with references as vCenter types them."""
    bare = element.replace(' versionId="8.0.3.0"', "").replace(
        'xsi:type="ManagedObject"', 'xsi:type="ManagedObjectReference"'
    )
    wrapped = f'<a xmlns="urn:vim25" xmlns:xsi="{SoapAdapter.XMLNS_XSI}" xmlns:xsd="{SoapAdapter.XMLNS_XSD}">{bare}</a>'
    canonical: bytes = etree.tostring(etree.fromstring(wrapped.encode()), method="c14n")
    return canonical
