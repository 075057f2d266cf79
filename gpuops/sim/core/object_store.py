"""The managed objects of a simulated vCenter, with what all of them share: lock, clock, random numbers and sessions."""

from __future__ import annotations

import itertools
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from gpuops.sim.core.call import Call, CurrentCall
from gpuops.sim.core.fragments import Fragments
from gpuops.sim.core.ledger import Ledger
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import Registry
from gpuops.sim.core.sessions import ClientSession, Sessions
from gpuops.sim.core.sim_clock import Clock, ClockMode

PATIENCE_S: Final = 0.05
"""Real seconds in which other clients may act before a wait with nothing scheduled jumps to its end."""

COALESCE: Final = timedelta(milliseconds=500)
"""Changes within this time of a first one are sent in one update, as vCenter batches them."""

OTHER_USER: Final = "VSPHERE.LOCAL\\somebody"
"""The user of changes that are not made by gpuops."""

ReadyValue = TypeVar("ReadyValue")


class ObjectStore:
    """The registry of managed objects, the clock, the ledger, the sessions, and one seeded `rng`.

    A thread that reads or changes it holds `lock` (re-entrant); the server takes it around every request. It knows no
    type of managed object; `World` adds what depends on more than this.
    """

    def __init__(self, *, seed: int, clock: ClockMode, start: datetime, api_version: str) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.api_version = api_version
        self.rng = random.Random(seed)  # noqa: S311 - reproducible choices, no secrets
        self.clock = Clock(clock, start=start)
        self.registry = Registry()
        self.fragments = Fragments()
        self.ledger = Ledger(self.clock.now)
        self.sessions = Sessions(self.clock.now, self.rng, self.registry, self.changed)
        self.changes = 0
        """How often a value of an object has changed."""
        self.bugs: list[str] = []
        self.page_limit: int | None = None
        """Objects per retrieved page when the client asks for more or sets no limit; None = all in one reply."""
        self.patience_s = 0.0 if clock is ClockMode.STEPPED else PATIENCE_S
        """See PATIENCE_S; stepped time passes only with requests and waits, so it does not wait in real time."""
        self.gzip = True
        """Whether large replies are compressed for clients that ask for it."""
        self.down_until: datetime | None = None
        """Until when vCenter restarts and answers no request; None = it runs."""
        self.vms_with_question: set[str] = set()
        """Moids of the VMs that a fault rule has made ask a question."""
        self.skew = timedelta()
        """The error of the time that clients read, compared with `clock`."""
        self.busy: Callable[[], bool] = lambda: False
        """Returns whether something runs in real time; a wait must not skip time then."""
        self.closing = False
        self._calls = threading.local()
        self._numbers = itertools.count(1)

    # --- objects ------------------------------------------------------------------------------------------------

    def register(self, managed_object: ManagedObject) -> None:
        """Make the object reachable by its moid. Raises ValueError when the moid is taken."""
        with self.changed:
            self.registry.add(managed_object)
            self.changed.notify_all()

    def unregister(self, managed_object: ManagedObject) -> None:
        """Forget the object: its moid answers ManagedObjectNotFound from now on, filters report that it left."""
        with self.changed:
            self.registry.remove(managed_object)
            self.fragments.forget(managed_object.moid)
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

    def touched(self, managed_object: ManagedObject, paths: tuple[str, ...]) -> None:
        """Drop what is cached of these paths of the object, which changed, and tell waiting property filters."""
        with self.lock:  # the lock of `changed` itself
            self.changes += 1
            self.fragments.drop(managed_object.moid, paths)
            self.registry.notify_touched(managed_object, paths)
            self.changed.notify_all()

    def next_number(self) -> int:
        """A number that was not given before (event keys, chain ids)."""
        return next(self._numbers)

    def number_from(self, first: int) -> None:
        """Make `next_number` count from `first`, because lower numbers are in use."""
        self._numbers = itertools.count(first)

    # --- calls --------------------------------------------------------------------------------------------------

    @property
    def current_call(self) -> Call | None:
        """The call that this thread is serving; for the few properties that depend on who reads them."""
        return getattr(self._calls, "current", None)

    def serving(self, call: Call) -> CurrentCall:
        """Return a `with` block in which `call` is the current call of this thread."""
        return CurrentCall(self._calls, call)

    # --- time ---------------------------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], ReadyValue | None], timeout_s: float | None) -> ReadyValue | None:
        """Wait until `ready()` returns a value, and return it; None after `timeout_s` seconds of the store's clock.

        Virtual and stepped time jump from timer to timer meanwhile; in real time the thread sleeps. The caller holds
        the lock; it is released meanwhile.
        """
        if self.clock.mode is ClockMode.REAL or self.busy():
            return self._wait_real(ready, timeout_s)
        return self._wait_jumping(ready, timeout_s)

    def _wait_jumping(self, ready: Callable[[], ReadyValue | None], timeout_s: float | None) -> ReadyValue | None:
        began_at = self.clock.now()
        try:
            return self._jump(ready, None if timeout_s is None else began_at + timedelta(seconds=timeout_s))
        finally:
            self.sessions.keep_alive(self.clock.now() - began_at)

    def _jump(self, ready: Callable[[], ReadyValue | None], deadline: datetime | None) -> ReadyValue | None:
        """Wait on virtual time: advance it to the next timer until `ready` returns a value; None at the deadline."""
        while not self.closing:
            self.clock.run_due()
            self._coalesce(deadline)
            ready_value = ready()
            if ready_value is not None or (deadline is not None and self.clock.now() >= deadline):
                return ready_value
            due = self.clock.next_due()
            if due is not None and (deadline is None or due <= deadline):
                self.clock.advance_to(due)
            elif deadline is None:
                self.changed.wait(1.0)
            # no timer is due before the deadline: real time is given for another client's request to change something
            elif not (self.patience_s and self.changed.wait(self.patience_s)):
                self.clock.advance_to(deadline)
                return ready()
        return None

    def _coalesce(self, deadline: datetime | None) -> None:
        """Run the actions that are due within `COALESCE`, so that their changes are sent in one update."""
        due, soon = self.clock.next_due(), self.clock.now() + COALESCE
        if due is not None and due <= soon and (deadline is None or soon <= deadline):
            self.clock.advance_to(soon)

    def _wait_real(self, ready: Callable[[], ReadyValue | None], timeout_s: float | None) -> ReadyValue | None:
        """Wait in real time until `ready` returns a value; None after the timeout or when the server closes."""
        deadline = None if timeout_s is None else self.clock.now() + timedelta(seconds=timeout_s)
        while not self.closing:
            self.clock.run_due()
            ready_value = ready()
            if ready_value is not None:
                return ready_value
            now = self.clock.now()
            if deadline is not None and now >= deadline:
                return None
            moments = [moment for moment in (deadline, self.clock.next_due(background=True)) if moment is not None]
            sleep_s = min((moment - now).total_seconds() for moment in moments) if moments else 1.0
            self.changed.wait(min(1.0, max(0.001, sleep_s)))
        return None

    # --- bugs of the simulator -------------------------------------------------------------------------------------

    def record_bug(self, bug: BaseException) -> None:
        """Keep the traceback of a bug in the simulator; the client sees a SystemError. Tests assert `bugs == []`."""
        self.bugs.append("".join(traceback.format_exception(bug)))


def somebody(store: ObjectStore, method: str) -> Call:
    """Return a call of another user, in a session that no client sees; the ledger records it under that user's name."""
    return Call(
        method=method, version=store.api_version, session=ClientSession(store.sessions, "", "", OTHER_USER, "en")
    )
