"""Privileges: which of those a plan needs this login lacks, asked for all VMs in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuops.errors import GpuopsError, NotConnected
from gpuops.vsphere import managed
from gpuops.vsphere.session import Session


def lacking(session: Session, needed: Mapping[str, Collection[str]]) -> Mapping[str, frozenset[str]]:
    """By VM, those of the needed privileges that vCenter says this login does not have.

    A vCenter that does not tell (an old one, or a login that may not ask) lacks nothing here: the step itself will
    say so then. Raises NotConnected in its kinds.
    """
    wanted = sorted({privilege for privileges in needed.values() for privilege in privileges})
    manager = session.content.authorizationManager
    if not wanted or manager is None:
        return {}
    try:
        login = session.read(lambda: session.content.sessionManager.currentSession)
        entities = [managed.vm(session, ref) for ref in needed]
        told = session.read(manager.HasPrivilegeOnEntities, entities, login.key, wanted) if login else []
    except NotConnected:
        raise
    except GpuopsError:
        return {}
    missing = {}
    for each in told or []:
        ref = str(each.entity._moId)
        refused = {one.privId for one in each.privAvailability if not one.isGranted}
        missing[ref] = frozenset(refused & set(needed.get(ref, ())))
    return {ref: privileges for ref, privileges in missing.items() if privileges}
