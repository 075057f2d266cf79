"""Goes by first ids: in what is written down of a night, a VM or host that was registered again has the id of the
evening, for the checkers; the night itself was played with the ids that vCenter gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from gpuops.sim.world import World

_PLAIN: Final = (int, float, bytes, type(None))


def first_ids(world: World) -> dict[str, str]:
    """The first id of each VM and host that has had several, by its later ones."""
    first: dict[str, str] = {}
    for change in world.ledger:
        if "moid" in change.after:
            first[str(change.after["moid"])] = first.get(str(change.before["moid"]), str(change.before["moid"]))
    return first


class FirstIds:
    """Writes values anew with first ids; what has none of the later ones stays the same object."""

    def __init__(self, first: Mapping[str, str]) -> None:
        self._first = first
        self._written: dict[int, tuple[Any, Any]] = {}
        """By identity: what it was, which is kept for its identity, and what it is now."""

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._first.get(value, value) if type(value) is str else value
        if isinstance(value, _PLAIN):
            return value
        if id(value) not in self._written:
            self._written[id(value)] = value, self._anew(value)
        return self._written[id(value)][1]

    def _anew(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            now = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            changed = {name: new for name, old in now.items() if (new := self.of(old)) is not old}
            return replace(value, **changed) if changed else value
        if isinstance(value, Mapping):
            written = {self.of(key): self.of(converted) for key, converted in value.items()}
            same = all(key in written and written[key] is converted for key, converted in value.items())
            return value if same else written
        if isinstance(value, list | tuple | set | frozenset):
            converted = [self.of(element) for element in value]
            if all(new is old for new, old in zip(converted, value, strict=True)):
                return value
            return type(value)(*converted) if hasattr(value, "_fields") else type(value)(converted)
        return value


def name_by_first_ids(world: World, first: Mapping[str, str]) -> None:
    """In the world itself: its ledger, and each VM and host that is there now, which is found under both ids."""
    ids = FirstIds(first)
    world.ledger._entries[:] = [ids.of(change) for change in world.ledger]
    for kind in ("VirtualMachine", "HostSystem"):
        for thing in list(world.by_type(kind)):
            if thing.moid in first:
                world.registry._objects[first[thing.moid]] = thing
                thing.moid = first[thing.moid]
