"""The loop of `gpuops runner run`: offers turns that are due, takes over those of dead runners, plays them.

While PostgreSQL is unreachable no new night begins. A running night stops by itself when it can no longer write its
journal. A running return continues with what it has read and with vCenter's markers. Runners themselves begin returns
that become due meanwhile: the runner that was seen last begins at once, each further one some minutes later, so that
one does the work and the others find it done.

The first of the living runners also reports overdue vCenters of the common journal, which no runner seems to return:
in the log, and by notices. It needs no target for that, so it also reports a vCenter that was removed from every
configuration file, or whose runners have died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.config.vcenter.targets import Configuration, NotifySettings
from gpuops.errors import GpuopsError, StateDamaged
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.site.site import NoticeWay
from gpuops.extras.fleet.runner.children import Children
from gpuops.extras.fleet.runner.due import (
    EVERY,
    DueTurn,
    Rotations,
    SitePolicy,
    due,
    half_of,
    load_policy_file,
    read_anew,
    waits,
)
from gpuops.extras.fleet.runner.leaving import leaving
from gpuops.extras.fleet.runner.queue_port import HandedOver, JobQueue, QueueAway
from gpuops.extras.notify.run_watch import send_overdue
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half, PolicyTurn

LOOK_S: Final = 3.0
"""How often a runner looks for due turns and for dead runners."""
STALE_S: Final = 120.0
"""After this time without a look the service counts as stuck: one look waits several times for a lost database."""
AWAY_S: Final = 120.0
"""A shorter outage of the database is a restart: runners begin no returns by themselves."""
RETURN_STAGGER: Final = timedelta(minutes=3)
"""How much later each further runner begins a return while the database does not answer."""
ENDS_ITSELF: Final = timedelta(minutes=1)
"""How long a night may continue after its window has closed, before a return is started next to it."""
SHARED_EVERY: Final = timedelta(minutes=5)
"""How often a runner stores what it plays, even without a change."""


@dataclass(slots=True)
class Service:
    """One runner. `say` takes a line for its log."""

    queue: JobQueue
    rotations: Rotations
    children: Children
    say: Callable[[str], None]
    offered: dict[PolicyTurn, DueTurn] = field(default_factory=dict)
    """The latest turn of each policy that was offered."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    away_since: datetime | None = None
    """Since when the database does not answer; None = it answers."""
    day_since: dict[PolicyTurn, datetime] = field(default_factory=dict)
    """Since when, while the database is away, a policy's return is due."""
    returned: dict[PolicyTurn, datetime] = field(default_factory=dict)
    """When this runner last began a return by itself."""
    again: dict[PolicyTurn, DueTurn] = field(default_factory=dict)
    """The turn of each policy that was offered again, once, because it had no journal."""
    moved: dict[PolicyTurn, datetime] = field(default_factory=dict)
    """The opening of the window in which this runner last had all moves of the policy's `defrag` made."""
    beside: dict[str, datetime] = field(default_factory=dict)
    """By site: when it last began a return next to a night that had not ended."""
    alone: set[asyncio.Task[int | None] | asyncio.Task[None]] = field(default_factory=set)
    """Returns that it began by itself and that have not ended."""
    unasked: set[PolicyTurn] = field(default_factory=set)
    """Returns that it began by itself, and for which it has not requested a turn yet."""
    not_offered: dict[str, str] = field(default_factory=dict)
    """By site: why its turns cannot be offered."""
    load: Callable[[Path, Policy], Policy] = load_policy_file
    configured: Callable[[Rotations, datetime], Rotations | None] = lambda known, now: None
    """Returns the policies of the current configuration file; None = as before."""
    returned_all: Callable[[str], None] = lambda _: None
    """Called with a site that is not a target any more, when all its desktops are back."""
    looked: Callable[[bool], None] = lambda _: None
    """Called when a look has ended: whether the database answered."""
    share: Callable[[Rotations], None] = lambda _: None
    """Stores what is played for other runners; it may wait for the database."""
    alarm: Callable[[], None] = lambda: None
    """Reports vCenters that no runner returns; it may wait for the database."""
    sharing: asyncio.Task[None] | None = None
    """The current or last task that stores and looks for such vCenters."""
    shared: tuple[datetime, Rotations] | None = None
    """When that task began last, and what was played then."""

    async def run(self) -> None:
        """Serve until `end`, then hand over the running turns."""
        serving = asyncio.create_task(self._serve())
        try:
            while not self.ending.is_set():
                if serving.done():  # the database was lost: running turns continue, and the queue is served again
                    self._note_away(serving)
                    serving = asyncio.create_task(self._serve())
                await self._look()
                self.looked(self.away_since is None)
                with suppress(TimeoutError):  # a pause that `end` cuts short
                    await asyncio.wait_for(self.ending.wait(), LOOK_S)
        finally:
            self.end()
            await self.children.wait_ended()
            await asyncio.gather(*self.alone)
            with suppress(QueueAway):
                await serving

    def end(self) -> None:
        """Take no more turns, and end running ones: each turn is handed over."""
        if not self.ending.is_set():
            self.ending.set()
            self.children.end()
            self.queue.stop()

    async def play(self, turn: PolicyTurn) -> None:
        """Play one turn: the half that is due now, even if the other half was due when the turn was offered.

        Raises HandedOver if this runner ends, so that another one takes the turn; also, once for each turn, if the
        journal was unreachable: after a restart of PostgreSQL the next attempt can reach it.
        """
        policies = self.rotations.get(turn.site, {})
        site_policy = policies.get(turn.policy)
        if site_policy is None:
            self.say(f"{turn.site}: no policy {turn.policy} is configured here: its turn is skipped")
            return
        if not self.ending.is_set():
            now = clock.wall_clock()
            self._reread_policies(turn.site, now)
            half = half_of(site_policy.policy, now)
            if _must_wait(policies, half, now) or ((site_policy.wrong or site_policy.leaving) and half is Half.NIGHT):
                return  # the turn is offered again after ten minutes
            try:
                begun = self.children.begin(half, turn.site, site_policy.file)
                code = await self._wait_for(begun, f"rotate {half}", turn)
                if code == 0 and half is Half.DAY:
                    self._stop_playing_if_removed(turn.site)
                    await self._defrag(turn, site_policy)
                # a return may run next to a night (`_return_beside`): no other runner may begin before both end
                await self.children.wait_ended(turn.site)
                next_turn = due(site_policy.policy, clock.wall_clock())
                # no journal: another attempt, but only one for each due turn
                if code == StateDamaged.exit_code and self.again.get(turn) != next_turn:
                    self.again[turn] = next_turn
                    raise HandedOver
            except asyncio.CancelledError:
                if not self.ending.is_set():
                    raise
                await self.children.wait_ended(turn.site)  # no other runner may take the turn before
        if self.ending.is_set():
            raise HandedOver

    async def _defrag(self, turn: PolicyTurn, site_policy: SitePolicy) -> None:
        """Have the moves of the policy's `defrag` made, once in each of its windows.

        All desktops are back, and the next night of this vCenter opens after the window (`refuse_clash`).
        """
        rule = site_policy.policy.defrag
        window = rule.window_at(clock.wall_clock()) if rule is not None and not self.ending.is_set() else None
        if window is None or site_policy.wrong or site_policy.leaving or self.moved.get(turn) == window.opens:
            return
        code = await self._wait_for(self.children.begin_defrag(turn.site, site_policy.file), "defrag", turn)
        if code == 0:
            self.moved[turn] = window.opens

    async def _wait_for(self, begun: asyncio.Task[int], command: str, turn: PolicyTurn) -> int | None:
        """Wait for a process, log how it ended, and return its exit code; None = it could not be started.

        If the waiting is cancelled, the process continues.
        """
        try:
            code = await asyncio.shield(begun)
        except OSError as error:
            self.say(f"{turn.site}: {command} of {turn.policy} cannot be started: {error.strerror}")
            return None
        if code:
            self.say(f"{turn.site}: {command} of {turn.policy} ended with {code}")
        return code

    def _stop_playing_if_removed(self, site: str) -> None:
        """Stop playing a removed target after its complete return."""
        if site in leaving(self.rotations):
            self.rotations = {name: policies for name, policies in self.rotations.items() if name != site}
            self.returned_all(site)
            self.say(f"{site}: all desktops are back, so runners no longer play this removed target")

    def _reread_policies(self, site: str, now: datetime) -> None:
        read_anew(site, self.rotations[site], now, self.load, self.say)

    async def _serve(self) -> None:
        if not self.ending.is_set():
            await self.queue.serve(self._sites, self.play)

    def _sites(self) -> list[str]:
        return [*self.rotations]

    def _note_away(self, serving: asyncio.Task[None]) -> None:
        error = serving.exception()
        if error is not None and not isinstance(error, QueueAway):
            raise error
        self._note_outage(error)

    async def _look(self) -> None:
        """Read changed files, offer due turns and take over those of dead runners; without the database, only begin
        returns."""
        if (rotations := self.configured(self.rotations, clock.wall_clock())) is not None:
            self.rotations = rotations
        for site in self.rotations:
            self._reread_policies(site, clock.wall_clock())
        self._return_beside()
        try:
            await self._offer()
            await self._ask_for_turns()
            rescued = await self.queue.rescue()
            await self.queue.status()  # updates `queue.rank`
        except QueueAway as away:
            self._note_outage(away)
            self._return_alone()
            return
        if rescued:
            self.say(f"{rescued} turns of runners that have stopped are offered again")
        self._share()
        if self.away_since is not None:
            self.say("the queue's PostgreSQL answers again")
            self.away_since = None
            self.day_since.clear()

    def _share(self) -> None:
        """Store what is played for other runners, and let the first living runner report overdue vCenters.

        It does so after a change of the rotations, else every `SHARED_EVERY`, and in a thread, because this loop must
        keep sending signs of life.
        """
        now = clock.wall_clock()
        if self.sharing is not None:
            if not self.sharing.done():
                return
            if not self.sharing.cancelled():
                self.sharing.result()  # raises the error of the thread
        if self.shared is None or self.shared[1] is not self.rotations or now >= self.shared[0] + SHARED_EVERY:
            self.shared = now, self.rotations
            self.sharing = asyncio.create_task(asyncio.to_thread(self._share_now, self.rotations, self.queue.rank == 0))
            self.alone.add(self.sharing)
            self.sharing.add_done_callback(self.alone.discard)

    def _share_now(self, rotations: Rotations, is_first: bool) -> None:
        self.share(rotations)
        if is_first:
            self.alarm()

    def _note_outage(self, error: BaseException | None) -> None:
        if self.away_since is None:
            self.away_since = clock.wall_clock()
            self.say(f"{error or 'the queue ended'}: no new turns begin; returns continue")

    async def _offer(self) -> None:
        """Offer the due turn of each policy, unless this runner has offered it already. Raises QueueAway."""
        now = clock.wall_clock()
        for site, policies in self.rotations.items():
            try:
                for name, site_policy in policies.items():
                    turn, due_turn = PolicyTurn(site, name), due(site_policy.policy, now)
                    if self.offered.get(turn) != due_turn and not _must_wait(policies, due_turn.half, now):
                        await self.queue.offer(turn, due_turn.since)
                        self.offered[turn] = due_turn
                self.not_offered.pop(site, None)
            except QueueAway as away:
                await self.queue.status()  # if this answers, only this site failed: the others are offered
                if self.not_offered.get(site) != away.message:
                    self.not_offered[site] = away.message
                    self.say(f"{site}: its turns cannot be offered: {away.message}")

    async def _ask_for_turns(self) -> None:
        """Have the queue hold a turn for each return that this runner began on its own account.

        Such a return may run without a turn: the database was lost, or another runner took the turn over while this one
        stood still. Without a turn in the queue no other runner would continue the return if this one died. The runner
        that takes the turn waits for the return if it runs there, or continues it.
        """
        for turn in tuple(self.unasked):
            if (turn.site, Half.DAY) in self.children.running:
                await self.queue.ask(turn)
            self.unasked.discard(turn)

    def _return_beside(self) -> None:
        """Begin a return next to a night of this runner that has not ended in time.

        It does not wait for the queue. Like a return started by cron, it ends a night that hangs.
        """
        now = clock.wall_clock()
        for site, policies in self.rotations.items():
            # any of its policies will do, because a return brings back the desktops of all of them
            name, site_policy = next(iter(policies.items()))
            due_turn = due(site_policy.policy, now)
            if (site, Half.NIGHT) not in self.children.running or (site, Half.DAY) in self.children.running:
                continue
            if (
                due_turn.half is Half.NIGHT
                or _must_wait(policies, due_turn.half, now)
                or now < due_turn.since + ENDS_ITSELF
            ):
                continue
            if site not in self.beside or self.beside[site] < due_turn.since:
                self.beside[site] = now
                self.say(f"{site}: rotate day starts because rotate night has not ended")
                self._begin_return(PolicyTurn(site, name), site_policy.file)

    def _return_alone(self) -> None:
        """While the database is unreachable, begin due returns, each further runner `RETURN_STAGGER` later.

        The runners cannot agree on one of them, and a return that another runner has completed finds nothing to do.
        """
        now = clock.wall_clock()
        if self.away_since is None:
            return
        for site, policies in self.rotations.items():
            for name, site_policy in policies.items():
                turn, half = PolicyTurn(site, name), half_of(site_policy.policy, now)
                if half is Half.NIGHT or _must_wait(policies, half, now):
                    self.day_since.pop(turn, None)
                    continue
                # wait `AWAY_S` first: a shorter outage is only a restart of the database
                begun = max(self.day_since.setdefault(turn, now), self.away_since + timedelta(seconds=AWAY_S))
                last = self.returned.get(turn)
                due_again = last is None or last < begun or now >= last + EVERY
                if now >= begun + self.queue.rank * RETURN_STAGGER and due_again and not self._runs(site):
                    self.returned[turn] = now
                    self.say(f"{site}: rotate day of {name}, by vCenter's markers")
                    self._begin_return(turn, site_policy.file)

    def _runs(self, site: str) -> bool:
        return any(running_site == site for running_site, _ in self.children.running)

    async def _return(self, begun: asyncio.Task[int], turn: PolicyTurn) -> None:
        """Wait for a return, and stop playing its target if that was removed and all desktops are back."""
        if await self._wait_for(begun, f"rotate {Half.DAY}", turn) == 0:
            self._stop_playing_if_removed(turn.site)

    def _begin_return(self, turn: PolicyTurn, file: Path) -> None:
        begun = self.children.begin(Half.DAY, turn.site, file)
        self.unasked.add(turn)
        watched = asyncio.create_task(self._return(begun, turn))
        self.alone.add(watched)
        watched.add_done_callback(self.alone.discard)


def _must_wait(policies: Mapping[str, SitePolicy], half: Half, now: datetime) -> bool:
    return waits(half, [site_policy.policy for site_policy in policies.values()], now)


@dataclass(slots=True)
class OverdueAlarm:
    """Reports overdue vCenters; each line is logged when it is new."""

    state_dir: Path
    url: str
    """URL of the journal, for SQLAlchemy and libpq."""
    configured: Callable[[], Configuration]
    """Returns the current configuration: each of its receivers gets the notices."""
    environ: Mapping[str, str]
    say: Callable[[str], None]
    clock: Callable[[], datetime] = clock.wall_clock
    said: tuple[str, ...] = ()
    """The lines of the last look."""

    def look(self) -> None:
        """Log lines that are new since the last look, and send today's notices once. It waits for the database."""
        lines: tuple[str, ...]
        unknown = list[StateDamaged]()
        try:
            overdue = overdue_vcenters(self.state_dir, self.url, self.clock, damaged=unknown.append)
        except GpuopsError as error:
            lines = (f"it is unknown whether all vCenters are returned: {error.line}",)
        else:
            lines = tuple(f"overdue: {vcenter}; next: {vcenter.next_move}" for vcenter in overdue)
            lines += tuple(f"it is unknown whether this vCenter is returned: {damage.line}" for damage in unknown)
            receivers = tuple(
                dict.fromkeys(receiver for target in self.configured().targets.values() for receiver in target.notify)
            )
            for vcenter in overdue if receivers else ():
                settings = NotifySettings(vcenter.vcenter, receivers)
                send_overdue(NoticeWay(settings, self.state_dir, self.environ, self.clock, self.say), vcenter)
        for line in lines:
            if line not in self.said:
                self.say(line)
        self.said = lines
