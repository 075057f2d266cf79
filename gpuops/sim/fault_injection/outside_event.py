"""One kind of event outside the calls of the tested client, such as a deleted VM; rules name it as `happening`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError
from gpuops.sim.core.registry import is_kind_of

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.fault_injection.rule import Rule

Act = Callable[[Any, "Rule"], None]


@dataclass(frozen=True, slots=True)
class OutsideEvent:
    """What is done to each targeted object of a type; with no type, once to the whole vCenter."""

    kind: str
    act: Act
    is_unseen: bool = False
    """Whether it changes what vCenter answers and nothing that it keeps."""

    def strike(self, store: ObjectStore, targets: Iterable[ManagedObject], rule: Rule) -> None:
        """Does it to the targets."""
        if not self.kind:
            self.act(store, rule)
            return
        for target in targets:
            if is_kind_of(target.wsdl_name, self.kind):
                self.act(target, rule)


def named(name: str, outside_events: Mapping[str, OutsideEvent]) -> OutsideEvent:
    """The event that a rule names as its `happening`. Raises UsageError."""
    try:
        return outside_events[name]
    except KeyError:
        raise UsageError(f"no happening is called {name!r}", hint=f"there are: {', '.join(outside_events)}") from None
