"""Asks the connection broker who has a session, for a snapshot on which is then decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.desktop_sessions import matched
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.model.broker import DesktopBroker
from gpuops.model.evidence import SessionCount
from gpuops.model.vm import Vm

ASK_AGAIN: Final = timedelta(seconds=60)
"""A broker that did not answer is left alone for so long: each look would wait for it anew. Our own figure."""


class BrokerSessions:
    """Implements `SessionSource` by a connection broker, which is opened when it is first asked and stays open.

    Two bulk reads at each look, of machines and of sessions: a machine that was made anew has another id, and by an
    older list its session would be nobody's. A VM is looked for by the inventory path of its machine alone, since its
    name may be that of another VM too. Of a VM that is no machine of the broker nothing is told. A login that is
    refused is not tried again: it would count towards a lockout.
    """

    def __init__(self, opened: Callable[[], DesktopBroker], say: Callable[[str], None] = lambda line: None) -> None:
        """`say` is told once of each way in which the broker does not answer."""
        self._opened = opened
        self.say = say
        self._broker: DesktopBroker | None = None
        self._said: set[str] = set()
        self._failed: datetime | None = None
        self._for_good = False

    def sessions(self, vms: Sequence[Vm], asked: datetime) -> Mapping[str, SessionCount]:
        """By VM (ref), what the broker tells of it; of each of these VMs that it could not be asked about, unknown."""
        resting = self._failed is not None and asked - self._failed < ASK_AGAIN
        if not (self._for_good or resting):
            try:
                return self._asked(vms, asked)
            except GpuopsError as error:
                self._failed = asked
                self._for_good = isinstance(error, LoginRefused) or not isinstance(error, NotConnected)
                self._tell(error.message)
        return {vm.ref: SessionCount(None, None, asked, because="the broker could not be asked") for vm in vms}

    def _asked(self, vms: Sequence[Vm], asked: datetime) -> Mapping[str, SessionCount]:
        if self._broker is None:
            self._broker = self._opened()
        machines = [each for each in self._broker.machines() if each.path is not None]
        return matched(vms, machines, self._broker.sessions(), asked).of_vm

    def _tell(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"broker: {why} (gpuops help broker)")
