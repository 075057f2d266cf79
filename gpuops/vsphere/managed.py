"""Managed objects by id: the only place where a reference from a snapshot or a journal becomes one to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.errors import ProtocolError
from gpuops.vsphere.transport.reference import REFERENCE

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session


def managed(session: Session, kind: str, ref: str) -> Any:
    """pyVmomi's object for a managed object id of this type (`VirtualMachine`). Raises ProtocolError for no id."""
    from pyVmomi import VmomiSupport

    if REFERENCE.fullmatch(ref) is None:
        raise ProtocolError(f"{ref!r} is not the id of a {kind}", hint="gpuops inventory reads the ids anew")
    return VmomiSupport.GetWsdlType("urn:vim25", kind)(ref, session.stub)


def vm(session: Session, ref: str) -> Any:
    """The VirtualMachine of that id."""
    return managed(session, "VirtualMachine", ref)


def host(session: Session, ref: str | None) -> Any:
    """The HostSystem of that id; None stays None, vCenter's own choice."""
    return None if ref is None else managed(session, "HostSystem", ref)
