"""Makes a return wait for a vCenter that cannot be reached, and tells the user so.

Only what may end by itself is waited for: nothing that answers, a reply that breaks off, and any answer that is not
vCenter's, for load balancers and a vCenter that starts answer 404, 302, 500, or a page of HTML with 200. A login that
is refused and a certificate that is not trusted are not waited for: trying again locks accounts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from gpuops.errors import NotConnected, ProtocolError, Trouble, VcenterUnreachable
from gpuops.model.nights.rotation import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.rotation.returns.return_time import waits_until

T = TypeVar("T")

FIRST_S: Final = 10.0
LONGEST_S: Final = 60.0
"""Between two tries; each is twice as long as the one before, until then."""
SAID_EVERY: Final = timedelta(minutes=10)


@dataclass(slots=True)
class VcenterWait:
    """How one return waits. What it says is bounded, however often vCenter comes and goes: a line in ten minutes, and
    for each of them one when vCenter is back."""

    policy: Policy | None
    """Whose desktops are to be back, and when; None = it is not known."""
    clock: Callable[[], datetime]
    pause: Callable[[float], None]
    say: Callable[[str], None]
    _rest_s: float = field(default=FIRST_S, init=False)
    _said: datetime | None = field(default=None, init=False)
    """When it last said that it waits."""
    _awaited: bool = field(default=False, init=False)
    """Whether that vCenter is back is still to be said."""

    def reached(self, attempt: Callable[[], T]) -> T:
        """What the attempt to reach vCenter returns, made again while it is away."""
        try:
            return attempt()
        except NotConnected as away:
            return self.until_back(away, attempt)

    def until_back(self, away: NotConnected, attempt: Callable[[], T]) -> T:
        """What the attempt returns once vCenter is back. Raises the latest error when the time is up, and at once what
        waiting does not mend."""
        began = self.clock()
        until = waits_until(self.policy, began)
        while _may_come_back(away) and self.clock() < until:
            self._tell_of(away, until)
            self.pause(min(self._rest_s, max(1.0, (until - self.clock()).total_seconds())))
            self._rest_s = min(2 * self._rest_s, LONGEST_S)
            try:
                found = attempt()
            except NotConnected as still:
                away = still
            else:
                self._tell_back(began)
                return found
        raise away

    def _tell_of(self, away: NotConnected, until: datetime) -> None:
        now = self.clock()
        if self._said is not None and now - self._said < SAID_EVERY:
            return
        if not self._awaited:  # the first try of an outage that comes long after the one before
            self._rest_s = FIRST_S
        self._said, self._awaited = now, True
        self.say(f"{away.message}: waiting for vCenter until {self._shown(until)}")

    def _tell_back(self, began: datetime) -> None:
        if self._awaited:
            self._awaited = False
            self.say(f"vCenter answers again after {(self.clock() - began).total_seconds() / 60:.0f} min: going on")

    def _shown(self, moment: datetime) -> str:
        zone = self.policy.windows[0].zone if self.policy is not None and self.policy.windows else UTC
        return format_zoned_minute(moment.astimezone(zone))


def _may_come_back(error: NotConnected) -> bool:
    return isinstance(error, VcenterUnreachable | ProtocolError) and error.trouble is Trouble.LOST
