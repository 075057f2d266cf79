"""Let a return wait for a vCenter that cannot be reached, and report the wait.

A return waits only for troubles that can end by themselves: no answer, a reply that breaks off, and an answer that is
not vCenter's (load balancers and a starting vCenter answer 404, 302, 500, or an HTML page with 200). It does not wait
after a refused login or for an untrusted certificate: more tries would lock the account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from gpuops.errors import NotConnected, ProtocolError, Trouble, VcenterUnreachable
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.rotation.returns.return_time import waits_until

T = TypeVar("T")

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 60.0
"""The first and the longest pause between two tries; each is twice as long as the one before."""
REPORT_EVERY: Final = timedelta(minutes=10)
"""The time between two lines of progress while a return waits."""


@dataclass(slots=True)
class VcenterWait:
    """The wait of one return. It reports at most one line in ten minutes, and one more when vCenter is back."""

    policy: Policy | None
    """The policy that sets when desktops must be back; None = not known."""
    clock: Callable[[], datetime]
    pause: Callable[[float], None]
    say: Callable[[str], None]
    _pause_s: float = field(default=FIRST_PAUSE_S, init=False)
    _reported_at: datetime | None = field(default=None, init=False)
    """When it last reported that it waits."""
    _must_report_back: bool = field(default=False, init=False)
    """Whether it has reported a wait, and not yet that vCenter is back."""

    def reach_vcenter(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, and repeat it while vCenter cannot be reached."""
        try:
            return attempt()
        except NotConnected as error:
            return self.until_back(error, attempt)

    def until_back(self, error: NotConnected, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns once vCenter is back.

        Raises the latest error when the time is up, and immediately an error that a wait cannot fix.
        """
        began = self.clock()
        give_up_at = waits_until(self.policy, began)
        while _may_come_back(error) and self.clock() < give_up_at:
            self._report_waiting(error, give_up_at)
            self.pause(min(self._pause_s, max(1.0, (give_up_at - self.clock()).total_seconds())))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            try:
                answer = attempt()
            except NotConnected as latest_error:
                error = latest_error
            else:
                self._report_back(began)
                return answer
        raise error

    def _report_waiting(self, error: NotConnected, give_up_at: datetime) -> None:
        now = self.clock()
        if self._reported_at is not None and now - self._reported_at < REPORT_EVERY:
            return
        if not self._must_report_back:  # a new outage: the pauses begin with the first one again
            self._pause_s = FIRST_PAUSE_S
        self._reported_at, self._must_report_back = now, True
        self.say(f"{error.message}: waiting for vCenter until {self._format_moment(give_up_at)}")

    def _report_back(self, began: datetime) -> None:
        if self._must_report_back:
            self._must_report_back = False
            self.say(f"vCenter answers again after {(self.clock() - began).total_seconds() / 60:.0f} min: going on")

    def _format_moment(self, moment: datetime) -> str:
        zone = self.policy.windows[0].zone if self.policy is not None and self.policy.windows else UTC
        return format_zoned_minute(moment.astimezone(zone))


def _may_come_back(error: NotConnected) -> bool:
    """Return whether the trouble can end by itself, so that a wait makes sense."""
    return isinstance(error, VcenterUnreachable | ProtocolError) and error.trouble is Trouble.LOST
