"""Joins the kept XML of selected objects and their properties to the reply of a bulk read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyVmomi import vmodl

from gpuops.sim.core.encoder import encoder, escape
from gpuops.sim.core.fragments import ABSENT
from gpuops.sim.vcenter.authority import reading_privilege, refusal

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.world import World


@lru_cache(maxsize=4096)
def reference(tag: str, obj_type: str, moid: str) -> bytes:
    """`<tag type="VirtualMachine">vm-1</tag>`."""
    return f'<{tag} type="{obj_type}">{escape(moid)}</{tag}>'.encode()


@lru_cache(maxsize=4096)
def _heads(paths: tuple[str, ...], version: str) -> tuple[tuple[tuple[str, str], bytes], ...]:
    """The cache key and the opening XML of each property."""
    return tuple(((path, version), f"<propSet><name>{escape(path)}</name>".encode()) for path in paths)


def object_contents(
    world: World, selected: Iterable[tuple[ManagedObject, tuple[str, ...]]], version: str, tag: str, user: str
) -> list[bytes]:
    """One ObjectContent per object, as a list of byte strings to be joined; what `user` may not read in missingSet."""
    parts: list[bytes] = []
    add = parts.append
    opening, closing = f"<{tag}>".encode(), f"</{tag}>".encode()
    for obj, paths in selected:
        add(opening)
        add(f'<obj type="{obj.wsdl_name}">{obj.moid}</obj>'.encode())
        kept = world.fragments.of(obj.moid) if not obj.volatile else {}
        hidden = world.authority.hidden(user, obj, paths)
        missing = [hidden_property(obj, path, version) for path in paths if path in hidden] if hidden else []
        if world.injector.hides:
            untold = _untold(world, obj, paths)
            missing += [missing_property(path, fault, version) for path, fault in untold.items() if fault is not None]
            hidden = hidden.union(untold)
        shown = tuple(path for path in paths if path not in hidden) if hidden else paths
        for key, head in _heads(shown, version):
            fragment = kept.get(key)
            if fragment is None:
                fragment = _rendered(world, obj, key, kept, missing)
            if fragment is not ABSENT:
                add(head)
                add(fragment)
                add(b"</propSet>")
        parts.extend(missing)
        add(closing)
    return parts


def _untold(world: World, obj: ManagedObject, paths: tuple[str, ...]) -> dict[str, Any]:
    """What this read shall not tell, with the faults that stand for it."""
    call = world.current_call
    return world.injector.hidden(obj, paths, call.method if call is not None else "")


def _rendered(
    world: World,
    obj: ManagedObject,
    key: tuple[str, str],
    kept: dict[tuple[str, str], bytes],
    missing: list[bytes],
) -> bytes:
    fragment, absence = readable(world, obj, *key)
    if absence:
        missing.append(absence)
    else:
        kept[key] = fragment
    return fragment


def readable(world: World, obj: ManagedObject, path: str, version: str) -> tuple[bytes, bytes]:
    """(fragment, b"") of a property, or (ABSENT, the missingSet element) when reading it ends in a fault."""
    try:
        return world.fragments.render(obj, path, version), b""
    except vmodl.query.InvalidProperty:
        raise
    except vmodl.MethodFault as fault:
        reason = fault
    except Exception as bug:
        world.record_bug(bug)
        reason = vmodl.fault.SystemError(msg=str(bug), reason=f"{type(bug).__name__}: {bug}")
    return ABSENT, missing_property(path, reason, version)


def hidden_property(obj: ManagedObject, path: str, version: str) -> bytes:
    """The missingSet element of a property that needs a privilege which the user lacks."""
    return missing_property(path, refusal(obj, reading_privilege(obj.wsdl_name, path)), version)


def missing_property(path: str, fault: Any, version: str) -> bytes:
    """The missingSet element of a property that could not be read."""
    value = encoder(version).element("fault", fault, vmodl.MethodFault)
    return f"<missingSet><path>{escape(path)}</path>{value}</missingSet>".encode()


def missing_object(tag: str, ref: Any, fault: Any, version: str) -> bytes:
    """The missingSet element of an object that is gone."""
    value = encoder(version).element("fault", fault, vmodl.MethodFault)
    return b"".join((f"<{tag}>".encode(), reference("obj", ref._wsdlName, ref._moId), f"{value}</{tag}>".encode()))
