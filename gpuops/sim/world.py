"""World: everything the simulated vCenter is, behind one lock."""

from __future__ import annotations

import itertools
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from gpuops.sim.authority import Authority
from gpuops.sim.call import Call, Serving
from gpuops.sim.clock import VIRTUAL_START, Clock, ClockMode
from gpuops.sim.events import Events
from gpuops.sim.fragments import Fragments
from gpuops.sim.ledger import Ledger
from gpuops.sim.managed_object import ManagedObject
from gpuops.sim.objects.option_manager import VCENTER_MOID
from gpuops.sim.registry import Registry
from gpuops.sim.services import add_services
from gpuops.sim.sessions import Sessions
from gpuops.sim.tagging import TagStore
from gpuops.sim.tasks import Tasks
from gpuops.sim.trouble.injector import Injector

if TYPE_CHECKING:
    from gpuops.sim.objects.custom_fields_manager import CustomFieldsManager
    from gpuops.sim.objects.option_manager import OptionManager
    from gpuops.sim.objects.performance_manager import PerformanceManager

API_VERSION: Final = "8.0.3.0"

PATIENCE_S: Final = 0.05
"""Real seconds in which other clients may act before a wait with nothing scheduled lets virtual time pass."""

COALESCE: Final = timedelta(milliseconds=500)
"""What happens within this time of a first change is told together, as vCenter batches its updates."""

Found = TypeVar("Found")


class World:
    """The registry of managed objects, the clock, the ledger, the tasks, the sessions, and one seeded `rng`.

    Whoever reads or changes it holds `lock` (re-entrant); the server takes it around every request.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        clock: ClockMode = ClockMode.VIRTUAL,
        start: datetime = VIRTUAL_START,
        api_version: str = API_VERSION,
    ) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.api_version = api_version
        self.rng = random.Random(seed)  # noqa: S311 - reproducible choices, no secrets
        self.clock = Clock(clock, start=start)
        self.registry = Registry()
        self.fragments = Fragments()
        self.ledger = Ledger()
        self.injector = Injector(self, seed)
        self.changes = 0
        """How often a value of an object has changed."""
        self.tasks = Tasks(self)
        self.sessions = Sessions(self)
        self.events = Events(self)
        self.authority = Authority(self)
        self.tags = TagStore(self._new_uuid, self._record_tag)
        self.state_hooks: tuple[Callable[[], Any], Callable[[Any], None]] | None = None
        """(save, restore) of the inventory's state as JSON values, if whoever built it offers them."""
        self.bugs: list[str] = []
        self.page_limit: int | None = None
        """Objects per retrieved page when the client asks for more or sets no limit; None = all in one reply."""
        self.patience_s = PATIENCE_S
        """See there; 0 where there is one client, in this thread."""
        self.gzip = True
        """Whether large replies are compressed for clients that ask for it."""
        self.down_until: datetime | None = None
        """While vCenter restarts it answers nobody."""
        self.asked: set[str] = set()
        """VMs that a rule has made ask a question."""
        self.skew = timedelta()
        """How far the time it tells is from its clock."""
        self.change_certificate: Callable[[], None] | None = None
        """Show another certificate from now on, if whoever serves it offers that."""
        self._calls = threading.local()
        self._numbers = itertools.count(1)
        self.closing = False
        add_services(self)

    # --- objects ------------------------------------------------------------------------------------------------

    def register(self, obj: ManagedObject) -> None:
        """Make `obj` reachable by its moid. Raises ValueError when the moid is taken."""
        with self.changed:
            self.registry.add(obj)
            self.changed.notify_all()

    def unregister(self, obj: ManagedObject) -> None:
        """Forget `obj`: its moid answers ManagedObjectNotFound from now on, filters report that it left."""
        with self.changed:
            self.registry.remove(obj)
            self.fragments.forget(obj.moid)
            self.changed.notify_all()

    def find(self, moid: str) -> ManagedObject | None:
        """The object of this moid, or None."""
        return self.registry.find(moid)

    def get(self, reference: Any) -> Any:
        """The object of a moid or of a pyVmomi reference. Raises vmodl.fault.ManagedObjectNotFound."""
        return self.registry.get(reference)

    def by_type(self, wsdl_name: str) -> Iterator[Any]:
        """All objects of a type and of its subtypes, oldest first."""
        return self.registry.by_type(wsdl_name)

    def touched(self, obj: ManagedObject, paths: tuple[str, ...]) -> None:
        """The values at these paths of `obj` changed: their cached XML goes, waiting property filters hear of it."""
        with self.lock:  # the lock of `changed` itself
            self.changes += 1
            self.fragments.drop(obj.moid, paths)
            self.registry.notice(obj, paths)
            self.changed.notify_all()

    def next_number(self) -> int:
        """A number that was not given before (event keys, chain ids)."""
        return next(self._numbers)

    # --- calls --------------------------------------------------------------------------------------------------

    @property
    def current_call(self) -> Call | None:
        """The call that this thread is serving; for the few properties that depend on who reads them."""
        return getattr(self._calls, "current", None)

    def serving(self, call: Call) -> Serving:
        """While this lasts, `call` is the current call of this thread."""
        return Serving(self._calls, call)

    # --- services -----------------------------------------------------------------------------------------------

    @property
    def custom_fields(self) -> CustomFieldsManager:
        """The custom attribute definitions; `define(name)` makes one."""
        found: CustomFieldsManager = self.get("CustomFieldsManager")
        return found

    @property
    def options(self) -> dict[str, Any]:
        """vCenter's advanced settings by key, such as `vgpu.hotmigrate.enabled`."""
        settings: OptionManager = self.get(VCENTER_MOID)
        return settings.options

    @property
    def performance(self) -> PerformanceManager:
        """The counters; set its `provider` to say what entities measure."""
        found: PerformanceManager = self.get("PerfMgr")
        return found

    # --- time ---------------------------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], Found | None], timeout_s: float | None) -> Found | None:
        """The first answer of `ready()` that is not None, waiting for it; None when `timeout_s` of time passed.

        Virtual time jumps from alarm to alarm meanwhile; real time is slept. The caller holds the lock, which is
        released while it sleeps.
        """
        if self.clock.mode is ClockMode.REAL:
            return self._wait_real(ready, timeout_s)
        return self._wait_virtual(ready, timeout_s)

    def _wait_virtual(self, ready: Callable[[], Found | None], timeout_s: float | None) -> Found | None:
        begun = self.clock.now()
        try:
            return self._jump(ready, None if timeout_s is None else begun + timedelta(seconds=timeout_s))
        finally:
            self.sessions.keep_alive(self.clock.now() - begun)

    def _jump(self, ready: Callable[[], Found | None], deadline: datetime | None) -> Found | None:
        while not self.closing:
            self._coalesce(deadline)
            found = ready()
            if found is not None:
                return found
            due = self.clock.next_due()
            if due is not None and (deadline is None or due <= deadline):
                self.clock.advance_to(due)
            elif deadline is None:
                self.changed.wait(1.0)
            elif not (self.patience_s and self.changed.wait(self.patience_s)):
                self.clock.advance_to(deadline)
                return ready()
        return None

    def _coalesce(self, deadline: datetime | None) -> None:
        """Let happen what is about to happen, so that it is told together."""
        due, soon = self.clock.next_due(), self.clock.now() + COALESCE
        if due is not None and due <= soon and (deadline is None or soon <= deadline):
            self.clock.advance_to(soon)

    def _wait_real(self, ready: Callable[[], Found | None], timeout_s: float | None) -> Found | None:
        deadline = None if timeout_s is None else self.clock.now() + timedelta(seconds=timeout_s)
        while not self.closing:
            self.clock.run_due()
            found = ready()
            if found is not None:
                return found
            now = self.clock.now()
            if deadline is not None and now >= deadline:
                return None
            moments = [moment for moment in (deadline, self.clock.next_due(background=True)) if moment is not None]
            sleep_s = min((moment - now).total_seconds() for moment in moments) if moments else 1.0
            self.changed.wait(min(1.0, max(0.001, sleep_s)))
        return None

    def task_manager_changed(self) -> None:
        """Say that the list of recent tasks is another."""
        manager = self.find("TaskManager")
        if manager is not None:
            manager.touch("recentTask")

    def _new_uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def _record_tag(self, operation: str, target: tuple[str, str], tag_id: str) -> None:
        """Write an attached or detached tag to the ledger."""
        call = self.current_call or Call(method=operation, version="")
        entity = self.find(target[1])
        if entity is not None:
            attached = operation == "attach"
            before, after = ([], [tag_id]) if attached else ([tag_id], [])
            self.ledger.record(call, entity, before={"tags": before}, after={"tags": after}, method=operation)

    # --- faults of our own --------------------------------------------------------------------------------------

    def record_bug(self, bug: BaseException) -> None:
        """Keep the traceback of a bug in the simulator; the client sees a SystemError. Tests assert `bugs == []`."""
        self.bugs.append("".join(traceback.format_exception(bug)))
