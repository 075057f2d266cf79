"""What the collectors of tasks and of events have in common: a filter and a position in the list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gpuops.sim.core.managed_object import ManagedObject, Properties, method
from gpuops.sim.inventory import faults

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.sim.core.call import Call
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

PAGE_SIZE: Final = 10
LARGEST_PAGE: Final = 1000


class HistoryCollector(ManagedObject):
    """What both collectors share. The scrollable position stands between items, at the oldest to begin with."""

    wsdl_name = "HistoryCollector"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {"filter": lambda self: self.spec}

    def __init__(self, world: World, session: ClientSession, spec: Any) -> None:
        super().__init__(world, session.unique_moid())
        self.session = session
        self.spec = spec
        self._page_size = PAGE_SIZE
        self._position = 0
        session.add(self)

    def matching(self) -> list[Any]:
        """All items that match, oldest first, rendered."""
        raise NotImplementedError

    def latest_page(self) -> list[Any]:
        """The newest page, newest first as vCenter sends it."""
        return self.matching()[-self._page_size :][::-1]

    def read_next(self, count: int) -> list[Any]:
        """The next newer items. Raises InvalidArgument for a count out of range (vSphere API, ReadNextEvents)."""
        _check(count)
        items = self.matching()
        page = items[self._position : self._position + count]
        self._position += len(page)
        return page

    def read_previous(self, count: int) -> list[Any]:
        """The next older items, newest first. Raises InvalidArgument."""
        _check(count)
        start = max(0, self._position - count)
        page = self.matching()[start : self._position]
        self._position = start
        return page[::-1]

    @method
    def SetCollectorPageSize(self, call: Call, maxCount: int) -> None:
        self._page_size = max(1, min(maxCount, LARGEST_PAGE))

    @method
    def RewindCollector(self, call: Call) -> None:
        self._position = 0

    @method
    def ResetCollector(self, call: Call) -> None:
        self._position = len(self.matching())

    @method
    def DestroyCollector(self, call: Call) -> None:
        self.session.remove(self)


def is_within(moment: datetime, by_time: Any) -> bool:
    """Whether a moment is in the range of a filter by time, whose ends may be unset."""
    begins = by_time.beginTime is None or moment >= by_time.beginTime
    return begins and (by_time.endTime is None or moment <= by_time.endTime)


def _check(count: int) -> None:
    if count < 1:
        raise faults.wrong_argument("maxCount")
