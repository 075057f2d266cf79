"""Joins the kept properties of selected objects to the reply of a bulk read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyVmomi import vmodl

from gpuops.sim.core.encoder import Encoding, Parts
from gpuops.sim.core.fragments import ABSENT, Kept
from gpuops.sim.vcenter.authority import reading_privilege, refusal

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.world import World


@lru_cache(maxsize=4096)
def _heads(paths: tuple[str, ...], encoding: Encoding) -> tuple[tuple[Kept, bytes], ...]:
    """The cache key of each property, and what stands before its value."""
    return tuple(((path, encoding), encoding.property_head(path)) for path in paths)


def object_contents(
    world: World, selected: Iterable[tuple[ManagedObject, tuple[str, ...]]], encoding: Encoding, tag: str, user: str
) -> list[Parts]:
    """One ObjectContent per object, written; what `user` may not read is in its missingSet."""
    contents: list[Parts] = []
    tail = encoding.property_tail
    for managed_object, paths in selected:
        fragments = world.fragments.of(managed_object.moid) if not managed_object.volatile else {}
        hidden = world.authority.hidden(user, managed_object, paths)
        missing = (
            [hidden_property(managed_object, path, encoding) for path in paths if path in hidden] if hidden else []
        )
        if world.injector.hides:
            untold = _hidden_properties(world, managed_object, paths)
            missing += [missing_property(path, fault, encoding) for path, fault in untold.items() if fault is not None]
            hidden = hidden.union(untold)
        visible_paths = tuple(path for path in paths if path not in hidden) if hidden else paths
        parts: Parts = []
        for key, head in _heads(visible_paths, encoding):
            fragment = fragments.get(key)
            if fragment is None:
                fragment, absence = readable(world, managed_object, *key)
                if absence:
                    missing.append(absence)
                else:
                    fragments[key] = fragment
            if fragment is not ABSENT:
                parts += head, fragment, tail
        members = [encoding.reference("obj", managed_object.wsdl_name, managed_object.moid)]
        if parts:
            members.append(encoding.properties(parts))
        if missing:
            members.append(encoding.repeated("missingSet", missing))
        contents.append(encoding.structure(tag, "ObjectContent", members))
    return contents


def _hidden_properties(world: World, managed_object: ManagedObject, paths: tuple[str, ...]) -> dict[str, Any]:
    """What this read shall not tell, with the faults that stand for it."""
    call = world.current_call
    return world.injector.hidden(managed_object, paths, call.method if call is not None else "")


def readable(world: World, managed_object: ManagedObject, path: str, encoding: Encoding) -> tuple[bytes, Parts]:
    """(fragment, []) of a property, or (ABSENT, the MissingProperty) when reading it ends in a fault."""
    try:
        return world.fragments.render(managed_object, path, encoding), []
    except vmodl.query.InvalidProperty:
        raise
    except vmodl.MethodFault as fault:
        reason = fault
    except Exception as bug:
        world.record_bug(bug)
        reason = vmodl.fault.SystemError(msg=str(bug), reason=f"{type(bug).__name__}: {bug}")
    return ABSENT, missing_property(path, reason, encoding)


def hidden_property(managed_object: ManagedObject, path: str, encoding: Encoding) -> Parts:
    """The MissingProperty of one that needs a privilege which the user lacks."""
    return missing_property(path, refusal(managed_object, reading_privilege(managed_object.wsdl_name, path)), encoding)


def missing_property(path: str, fault: Any, encoding: Encoding) -> Parts:
    """The MissingProperty of one that could not be read."""
    members = encoding.member("path", path, str), encoding.member("fault", fault, vmodl.MethodFault)
    return encoding.structure("missingSet", "MissingProperty", members)


def missing_object(ref: Any, fault: Any, encoding: Encoding) -> Parts:
    """The MissingObject of one that is gone."""
    members = encoding.member("obj", ref, type(ref)), encoding.member("fault", fault, vmodl.MethodFault)
    return encoding.structure("missingSet", "MissingObject", members)
