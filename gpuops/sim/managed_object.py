"""ManagedObject: declared properties and methods of one object at the other end of the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from gpuops.sim.world import World

Reader = Callable[[Any], Any]


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""An optional property without a value: absent from every reply (never an empty enum)."""


def prop(path: str) -> Callable[[Reader], Reader]:
    """Declare the reader of a property path, such as `runtime.powerState`; it returns a vmomi value or UNSET."""

    def declare(reader: Reader) -> Reader:
        reader.__dict__.setdefault("__property_paths__", []).append(path)
        return reader

    return declare


def method(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a wire method; its Python name is the WSDL name, its keyword arguments are the WSDL parameters."""
    implementation.__dict__["__wire_method__"] = True
    return implementation


class ManagedObject:
    """One managed object: `wsdl_name`, `moid`, properties read by path, methods called by WSDL name."""

    wsdl_name: ClassVar[str]
    readers: ClassVar[dict[str, str]] = {}
    methods: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        cls.readers, cls.methods = dict(cls.readers), dict(cls.methods)
        for name, member in vars(cls).items():
            for path in getattr(member, "__property_paths__", ()):
                cls.readers[path] = name
            if getattr(member, "__wire_method__", False):
                cls.methods[name] = name

    def __init__(self, world: World, moid: str) -> None:
        self.world = world
        self.moid = moid

    def read(self, path: str) -> Any:
        """The value at a property path: the longest declared prefix, then plain attributes. UNSET if there is none.

        Raises LookupError(path) for a path that no reader declares.
        """
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            reader = self.readers.get(".".join(parts[:length]))
            if reader is None:
                continue
            value = getattr(self, reader)()
            for name in parts[length:]:
                if value is UNSET or value is None:
                    return UNSET
                value = getattr(value, name)
            return UNSET if value is None else value
        raise LookupError(path)

    def touch(self, *paths: str) -> None:
        """Say that the values at these paths changed: cached XML goes, waiting property filters hear of it."""
        self.world.touched(self, paths)
