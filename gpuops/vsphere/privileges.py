"""Privileges: which of those a plan needs this login lacks, asked for all VMs in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gpuops.errors import GpuopsError, NotConnected
from gpuops.plan.core.privileges import ASSIGN_TO_POOL, DEFINE_ATTRIBUTE
from gpuops.vsphere import managed
from gpuops.vsphere.session import Session

WRITE_ATTRIBUTE: Final = "Global.SetCustomField"
_CLUSTER: Final = "ClusterComputeResource"


def lacking(
    session: Session, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
) -> Mapping[str, frozenset[str]]:
    """By VM, those of the needed privileges that vCenter says this login does not have.

    `attributes` are to be written; VMs that would be the first to carry one need the privilege to define it. A vCenter
    that does not tell (an old one, or a login that may not ask) lacks nothing here: the step itself will say so then.
    Raises NotConnected in its kinds.
    """
    try:
        login = _login(session)
        missing = _missing(session, login, {ref: managed.vm(session, ref) for ref in needed}, needed)
        cannot_define = bool(missing) and not _may_define(session, login, attributes)
    except NotConnected:
        raise
    except GpuopsError:
        return {}
    for ref in missing:
        if cannot_define and WRITE_ATTRIBUTE in needed.get(ref, ()):
            missing[ref] |= {DEFINE_ATTRIBUTE}
    return {ref: privileges for ref, privileges in missing.items() if privileges}


def lacking_on_hosts(session: Session, needed: Mapping[str, Collection[str]]) -> Mapping[str, frozenset[str]]:
    """By host, those of the needed privileges that vCenter says this login does not have.

    A vCenter that does not tell lacks nothing here. Raises NotConnected in its kinds.
    """
    return _lacking_on(session, "HostSystem", needed)


def lacking_on_clusters(session: Session, needed: Mapping[str, Collection[str]]) -> Mapping[str, frozenset[str]]:
    """By cluster, those of the needed privileges that vCenter says this login does not have.

    That to bring a VM into a resource pool is asked of the cluster's own pool.
    """
    edits = {ref: frozenset(privileges) - ASSIGN_TO_POOL for ref, privileges in needed.items()}
    lacking = dict(_lacking_on(session, _CLUSTER, {ref: privileges for ref, privileges in edits.items() if privileges}))
    for ref, privileges in needed.items():
        if ASSIGN_TO_POOL & frozenset(privileges):
            lacking[ref] = lacking.get(ref, frozenset()) | _lacking_on_pool(session, ref)
    return {ref: privileges for ref, privileges in lacking.items() if privileges}


def _lacking_on_pool(session: Session, cluster: str) -> frozenset[str]:
    try:
        pool = session.read(lambda: managed.managed(session, _CLUSTER, cluster).resourcePool)
    except NotConnected:
        raise
    except GpuopsError:
        return frozenset()
    if pool is None:
        return frozenset()
    return _lacking_on(session, "ResourcePool", {str(pool._moId): ASSIGN_TO_POOL}).get(str(pool._moId), frozenset())


def _lacking_on(session: Session, kind: str, needed: Mapping[str, Collection[str]]) -> Mapping[str, frozenset[str]]:
    try:
        missing = _missing(
            session, _login(session), {ref: managed.managed(session, kind, ref) for ref in needed}, needed
        )
    except NotConnected:
        raise
    except GpuopsError:
        return {}
    return {ref: privileges for ref, privileges in missing.items() if privileges}


def held_on_hosts(session: Session, hosts: Collection[str], asked: Collection[str]) -> Mapping[str, frozenset[str]]:
    """By host that vCenter told of, those of the privileges that this login has. Raises NotConnected in its kinds."""
    wanted = frozenset(asked)
    try:
        entities = {ref: managed.host(session, ref) for ref in hosts}
        missing = _missing(session, _login(session), entities, dict.fromkeys(hosts, wanted))
    except NotConnected:
        raise
    except GpuopsError:
        return {}
    return {ref: wanted - refused for ref, refused in missing.items()}


def _login(session: Session) -> str | None:
    """The key of the session by which vCenter knows who asks; None where it does not tell."""
    login = session.read(lambda: session.content.sessionManager.currentSession)
    return login.key if login is not None else None


def _missing(
    session: Session, login: str | None, entities: Mapping[str, Any], needed: Mapping[str, Collection[str]]
) -> dict[str, frozenset[str]]:
    """By entity that vCenter told of, what it refuses of what is needed there."""
    wanted = sorted({privilege for privileges in needed.values() for privilege in privileges})
    manager = session.content.authorizationManager
    if not wanted or manager is None or login is None:
        return {}
    told = session.read(manager.HasPrivilegeOnEntities, list(entities.values()), login, wanted)
    missing = {}
    with session.decoding("HasPrivilegeOnEntities"):
        for each in told or []:
            ref = str(each.entity._moId)
            refused = {one.privId for one in each.privAvailability if not one.isGranted}
            missing[ref] = frozenset(refused & set(needed.get(ref, ())))
    return missing


def _may_define(session: Session, login: str | None, attributes: Collection[str]) -> bool:
    """Whether every one of these attributes is there, or may be made by this login."""
    content: Any = session.content
    if not attributes or content.customFieldsManager is None:
        return True
    defined = {field.name for field in session.read(lambda: content.customFieldsManager.field) or ()}
    if defined.issuperset(attributes):
        return True
    granted = session.read(
        content.authorizationManager.HasPrivilegeOnEntity, content.rootFolder, login, [DEFINE_ATTRIBUTE]
    )
    return bool(granted and granted[0])
