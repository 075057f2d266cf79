"""Asks the connection broker who has a session, for a snapshot on which is then decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpuops import clock
from gpuops.advise.desktop_sessions import matched
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.model.desktops.broker import DesktopBroker
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.vm import Vm

ASK_AGAIN: Final = timedelta(seconds=60)
"""A broker that did not answer is left alone for so long: each look would wait for it anew. Our own figure."""


class BrokerRest:
    """Whether the broker is asked now, or let rest: one answer for everything that asks it in a run.

    After it has failed it rests for a minute, by a clock that nobody sets; the first answer after that ends it. A login
    that is refused is not tried again, since it would count towards a lockout, nor is what the account may not do.
    """

    def __init__(self, passed_s: Callable[[], float] = clock.passed_s) -> None:
        """`passed_s` counts seconds since some moment, whatever is done to the clock."""
        self._passed_s = passed_s
        self._failed_s: float | None = None
        self._for_good = False
        self.why = ""
        """How it failed last."""

    @property
    def rests(self) -> bool:
        """Whether it is not asked now."""
        if self._failed_s is None:
            return False
        return self._for_good or self._passed_s() - self._failed_s < ASK_AGAIN.total_seconds()

    def failed(self, error: GpuopsError) -> None:
        """It did not answer, or refused to."""
        self._failed_s, self.why = self._passed_s(), error.message
        self._for_good = isinstance(error, LoginRefused) or not isinstance(error, NotConnected)

    def answered(self) -> None:
        self._failed_s, self.why = None, ""


class BrokerSessions:
    """Implements `SessionSource` by a connection broker, which is opened when it is first asked and stays open.

    Two bulk reads at each look, of machines and of sessions: a machine that was made anew has another id, and by an
    older list its session would be nobody's. A VM is looked for by the inventory path of its machine alone, since its
    name may be that of another VM too. Of a VM that is no machine of the broker nothing is told.
    """

    def __init__(
        self,
        opened: Callable[[], DesktopBroker],
        say: Callable[[str], None] = lambda line: None,
        rest: BrokerRest | None = None,
    ) -> None:
        """`say` is told once of each way in which the broker does not answer. `rest` is shared by all that ask it."""
        self._opened = opened
        self.say = say
        self.rest = rest or BrokerRest()
        self._said: set[str] = set()

    def sessions(self, vms: Sequence[Vm], asked: datetime) -> Mapping[str, SessionCount]:
        """By VM (ref), what the broker tells of it; of each of these VMs that it could not be asked about, unknown."""
        if not self.rest.rests:
            try:
                return self._asked(vms, asked)
            except GpuopsError as error:
                self.rest.failed(error)
                self._tell(error.message)
        return {vm.ref: SessionCount(None, None, asked, because="the broker could not be asked") for vm in vms}

    def _asked(self, vms: Sequence[Vm], asked: datetime) -> Mapping[str, SessionCount]:
        broker = self._opened()
        machines = [each for each in broker.machines() if each.path is not None]
        told = matched(vms, machines, broker.sessions(), asked).of_vm
        self.rest.answered()
        return told

    def _tell(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"broker: {why} (gpuops help broker)")
