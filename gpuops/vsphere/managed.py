"""Managed objects by id: the only place where a reference from a snapshot or a journal becomes one to call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import ProtocolError

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

# pyVmomi writes the id into `_this` as it is, unescaped: anything else could carry elements of its own.
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")


def managed(session: Session, kind: str, ref: str) -> Any:
    """pyVmomi's object for a managed object id of this type (`VirtualMachine`). Raises ProtocolError for no id."""
    from pyVmomi import VmomiSupport

    if _REFERENCE.fullmatch(ref) is None:
        raise ProtocolError(f"{ref!r} is not the id of a {kind}", hint="gpuops inventory reads the ids anew")
    return VmomiSupport.GetWsdlType("urn:vim25", kind)(ref, session.stub)


def vm(session: Session, ref: str) -> Any:
    """The VirtualMachine of that id."""
    return managed(session, "VirtualMachine", ref)


def host(session: Session, ref: str | None) -> Any:
    """The HostSystem of that id; None stays None, vCenter's own choice."""
    return None if ref is None else managed(session, "HostSystem", ref)
