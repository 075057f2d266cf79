"""Questions: VMs that stand still until somebody answers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gpuops.vsphere import typed_pages
from gpuops.vsphere.managed import vm

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session


def questions(session: Session, vms: Collection[str]) -> Mapping[str, str]:
    """The text of the question each of these VMs waits on (`runtime.question`); those that do not wait are left out.

    gpuops never answers one: the wrong answer loses data.
    """
    from pyVmomi import vim, vmodl

    if not vms:
        return {}
    query = vmodl.query.PropertyCollector
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=vm(session, ref)) for ref in vms],
        propSet=[query.PropertySpec(type=vim.VirtualMachine, pathSet=["runtime.question"], all=False)],
        reportMissingObjectsInResults=True,
    )
    found = typed_pages.objects(session, spec, len(vms))
    with session.decoding("a read of questions"):
        return {str(each.obj._moId): str(one.val.text) for each in found for one in each.propSet if one.val is not None}
