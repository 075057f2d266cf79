"""Reads single objects as vCenter tells them, for a bug report: the properties that an inventory is made of, undecoded.

pyVmomi's types say of each value what it is, so that a word of the API is told apart from a text of the site.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.vcenter.wire_reply import FreeText, Reference, Told, WireReply
from gpuops.vsphere.reading.bulk import property_paths as paths

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

MOST: Final = 200
"""Objects in one bundle."""
TYPE: Final = "_typeName"
"""The key of an object's type, as VI/JSON has it."""


def replies(session: Session, vms: Collection[str], hosts: Collection[str]) -> tuple[WireReply, ...]:
    """What vCenter tells of these VMs and hosts (ids), 200 of them at the most; one that is gone is left out.

    Raises NotConnected in its kinds, ProtocolError.
    """
    from pyVmomi import vim, vmodl

    query = vmodl.query.PropertyCollector
    wanted = [*(session.vm(ref) for ref in vms), *(session.host(ref) for ref in hosts)][:MOST]
    if not wanted:
        return ()
    version = session.api_version
    read: dict[Any, tuple[str, ...]] = {
        vim.VirtualMachine: (*paths.VM, *paths.known(paths.VM_DETAIL, version)),
        vim.HostSystem: (*paths.known(paths.HOST, version), *paths.HOST_DEVICES),
    }
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=each) for each in wanted],
        propSet=[query.PropertySpec(type=kind, pathSet=list(asked)) for kind, asked in read.items()],
        reportMissingObjectsInResults=True,
    )
    found = session.retrieve(spec, len(wanted))
    with session.decoding("RetrievePropertiesEx"):
        return tuple(
            WireReply(_reference(each.obj), dict(_properties(each, read.get(type(each.obj), ())))) for each in found
        )


def _properties(found: Any, asked: Collection[str]) -> Iterator[tuple[str, Told]]:
    """Those that were asked for: a name is what the server says."""
    for prop in found.propSet or ():
        if prop.name in asked:
            yield str(prop.name), _told(prop.val)


def _reference(managed: Any) -> Reference:
    from pyVmomi import VmomiSupport

    return Reference(VmomiSupport.GetWsdlName(type(managed)), managed._moId)


def _told(value: Any) -> Told:
    from pyVmomi import VmomiSupport

    match value:
        case None | bool() | datetime() | float():
            return value
        case int():
            return int(value)
        case VmomiSupport.ManagedObject():
            return _reference(value)
        case VmomiSupport.DataObject():
            return {TYPE: VmomiSupport.GetWsdlName(type(value)), **dict(_fields(value))}
        case list():
            return [_told(each) for each in value]
        case VmomiSupport.Enum() if value in type(value).values:
            return str(value)
        case _:
            return FreeText(str(value))


def _fields(value: Any) -> Iterator[tuple[str, Told]]:
    for field in value._GetPropertyList():
        told = getattr(value, field.name)
        if told is not None and not (isinstance(told, list) and not told):
            yield field.name, _told(told)
