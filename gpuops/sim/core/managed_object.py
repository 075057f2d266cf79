"""The base of all managed objects: properties and methods are declared, and found by their names in the API."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from operator import methodcaller
from typing import Any, ClassVar, Final, NamedTuple, Protocol

Reader = Callable[[Any], Any]
Properties = Mapping[str, Reader]
"""Property paths, several in one text separated by spaces, and what reads them of an object: a vmomi value or UNSET."""
Methods = Mapping[str, Callable[..., Any]]
"""WSDL names of methods, and what answers them: called with the object, the Call and the WSDL parameters by name."""


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""An optional property without a value: absent from every reply (never an empty enum)."""


class SharedValue(NamedTuple):
    """A property's value that many objects have: those with the same `key` differ in nothing but the `fills`.

    `read()` gives the value with placeholders in it, `fills` the text that replaces each one where it is written.
    """

    key: Hashable
    read: Callable[[], Any]
    fills: Mapping[str, str] = {}


def prop(path: str) -> Callable[[Reader], Reader]:
    """Declare the reader of a property path, such as `runtime.powerState`; it returns a vmomi value or UNSET."""

    def declare(reader: Reader) -> Reader:
        reader.__dict__.setdefault("__property_paths__", []).append(path)
        return reader

    return declare


def method(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a wire method: `def PowerOnVM_Task(self, call, host=None)`.

    Its Python name is the WSDL name; it gets the Call (who asks, in which version), then the WSDL parameters as keyword
    arguments, decoded to pyVmomi values (an omitted optional one is None, an omitted list is empty). Object references
    arrive as pyVmomi references: `world.get(reference)` is the object. It returns a vmomi value, a ManagedObject (sent
    as its reference), a list of either, or None; it raises the vim fault that the client shall see.
    """
    implementation.__dict__["__wire_method__"] = True
    return implementation


class ObjectOwner(Protocol):
    """The methods that every managed object needs from its world; most types need more and declare `world: World`."""

    def find(self, moid: str) -> ManagedObject | None:
        """The object of this moid, or None."""

    def touched(self, managed_object: ManagedObject, paths: tuple[str, ...]) -> None:
        """The values at these paths of the object changed."""


class ManagedObject:
    """One managed object: `wsdl_name`, `moid`, properties read by path, methods called by WSDL name."""

    wsdl_name: ClassVar[str]
    volatile: ClassVar[bool] = False
    """Whether its values change by themselves (with time, with the caller), so that no encoded value is cached."""
    property_table: ClassVar[Properties] = {}
    """Properties that one expression reads; `@prop` declares the others."""
    method_table: ClassVar[Methods] = {}
    """Methods that one expression answers; `@method` declares the others."""
    readers: ClassVar[dict[str, Reader]] = {}
    routes: ClassVar[dict[str, tuple[Reader, list[str]] | None]] = {}
    """Cache by path of the reader and the attributes after it; None = no declared property is a prefix of the path."""
    methods: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the readers and methods of the class: those of its bases, of its tables, and of decorated members."""
        bases = cls.__bases__[::-1]  # so that the first base wins, as in Python's own lookup
        cls.readers = {path: name for base in bases for path, name in getattr(base, "readers", {}).items()}
        cls.routes = {}
        cls.methods = {wsdl: name for base in bases for wsdl, name in getattr(base, "methods", {}).items()}
        for paths, reader in vars(cls).get("property_table", {}).items():
            cls.readers |= dict.fromkeys(paths.split(), reader)
        for name, answer in vars(cls).get("method_table", {}).items():
            setattr(cls, name, answer)
            cls.methods[name] = name
        for name, member in vars(cls).items():
            for path in getattr(member, "__property_paths__", ()):
                cls.readers[path] = methodcaller(name)  # a subclass may have another method of that name
            if getattr(member, "__wire_method__", False):
                cls.methods[name] = name

    def __init__(self, world: ObjectOwner, moid: str) -> None:
        self.world = world
        self.moid = moid

    @cached_property
    def ref(self) -> Any:
        """The pyVmomi reference to this object, for values that point to it."""
        from pyVmomi import VmomiSupport

        return VmomiSupport.GetWsdlType("urn:vim25", self.wsdl_name)(self.moid)

    @property
    def display_name(self) -> str:
        """The name people see (ledger, TaskInfo.entityName): the `name` attribute, or the id of an object without."""
        name = getattr(self, "name", "")
        return name if isinstance(name, str) and name else self.moid

    @property
    def governed_by(self) -> ManagedObject:
        """The object whose permissions hold for this one: itself."""
        return self

    def read(self, path: str) -> Any:
        """Return the value at a property path; UNSET without a value.

        The longest declared prefix of the path is read by its reader, the rest as attributes of that value.
        """
        if path not in self.routes:
            self.routes[path] = _route(self.readers, path)
        route = self.routes[path]
        if route is None:
            return UNSET
        reader, names = route
        value = reader(self)
        for name in names:  # an unset part of the path leaves the path without a value
            if value is UNSET or value is None:
                return UNSET
            value = getattr(value, name)
        return UNSET if value is None else value

    def linked(self, path: str) -> list[ManagedObject]:
        """The objects that a property of references leads to; those that exist."""
        value = self.read(path)
        if value is UNSET or value is None:
            return []
        links = value if isinstance(value, (list, tuple)) else (value,)
        targets = (link if isinstance(link, ManagedObject) else self.world.find(link._moId) for link in links)
        return [target for target in targets if target is not None]

    def parent_object(self) -> ManagedObject | None:
        """The object directly above this one in the inventory tree, as its `parent` property says."""
        return next(iter(self.linked("parent")), None)

    def refresh(self) -> None:
        """Find changes that nothing has reported to this object, such as members of a view, and touch their paths."""

    def shape(self, path: str) -> SharedValue | None:
        """Return the shape of a property whose value many objects share; None = it is rendered for this object alone.

        Ten thousand device lists of a handful of shapes are then rendered a handful of times.
        """
        return None

    def touch(self, *paths: str) -> None:
        """Report a change of the values at these paths: drop cached fragments and notify waiting property filters."""
        self.world.touched(self, paths)


def _route(readers: Mapping[str, Reader], path: str) -> tuple[Reader, list[str]] | None:
    """Return the reader of the longest declared prefix of a path, and the remaining attributes, or None."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        reader = readers.get(".".join(parts[:length]))
        if reader is not None:
            return reader, parts[length:]
    return None
