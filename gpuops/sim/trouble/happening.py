"""One kind of event beside the calls of the tested client, such as a deleted VM or a lost host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError
from gpuops.sim.core.registry import is_kind_of

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.trouble.rule import Rule

Act = Callable[[Any, "Rule"], None]


@dataclass(frozen=True, slots=True)
class Happening:
    """What happens to each object of a type that is meant; with no type, once to the whole site."""

    kind: str
    act: Act
    is_unseen: bool = False
    """Whether it changes what vCenter answers and nothing that it keeps."""

    def strike(self, store: ObjectStore, targets: Iterable[ManagedObject], rule: Rule) -> None:
        """Let it happen."""
        if not self.kind:
            self.act(store, rule)
            return
        for target in targets:
            if is_kind_of(target.wsdl_name, self.kind):
                self.act(target, rule)


def named(name: str, happenings: Mapping[str, Happening]) -> Happening:
    """The happening of that name. Raises UsageError."""
    try:
        return happenings[name]
    except KeyError:
        raise UsageError(f"no happening is called {name!r}", hint=f"there are: {', '.join(happenings)}") from None
