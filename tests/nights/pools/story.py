"""Story: two nights in a row with pools, from one seed: people who lend and return, calls of a clock, kills, trouble.

Every call is a process of its own, which may be killed before and after each effect in vCenter, each record of the
journal, each change of a pool's book, and each script in a guest. While a night waits for clients, others call on. The
second night has no kills, and what the first left over has to end in it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, cast
from unittest.mock import patch

from gpuops.config.policy import parse_policy
from gpuops.config.remote_gpu_file import load_program
from gpuops.errors import GpuopsError
from gpuops.execute.journal.database import sqlite_engine
from gpuops.execute.pool import book as pool_book
from gpuops.execute.pool import by_night, clients, guest_work, running, servers
from gpuops.execute.pool.book import PoolBooks
from gpuops.execute.pool.tables import made_database
from gpuops.execute.rotation import rotation
from gpuops.execute.site.ports import Vcenter
from gpuops.model.workloads.lease_book import LeaseBook, LeaseState, ServerState
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.members import ShareRequest
from gpuops.plan.pool.reclaim import Reclaim
from gpuops.sim.core.object_store import somebody
from gpuops.sim.operations.vms import power
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.state.vm_state import Power
from tests.nights.jobs.story import KeptDatabase
from tests.nights.playing.place import MEMORY, NightPlace, NightStore
from tests.nights.playing.processes import Killed
from tests.nights.pools.guests import CALLS, ClientWords, MadePoolGuests, ServerWords
from tests.nights.pools.played import Look, Morning, PoolStory
from tests.nights.pools.site import BACK_BY, CLOSES, FIRST, MINUTE, OPENS, site_of
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import policies_read_quickly

NIGHTS: Final = 2
_EFFECTS: Final = ("SetAttribute", "SuspendVm", "PowerOnVm", "ResumeVm", "ShutDownGuest")
RUNS: Final = frozenset(
    f"{when} {what}" for when in ("before", "after") for what in ("an append", "change", "dismiss", *_EFFECTS)
)
CALLS_FOR_POOLS: Final = frozenset(
    f"{when} {what}" for when in ("before", "after") for what in (*CALLS, "change", "SetAttribute")
)
POINTS: Final = RUNS | CALLS_FOR_POOLS
"""Where a process must have been killed at least once in many stories: a night or a return, a call for a pool."""
_NAME: Final = re.compile(r" [a-z]+-\d+$")
Deed = Callable[[NightPlace], object]


class PoolNights:
    """Plays one story."""

    def __init__(self, seed: int, state: Path) -> None:
        site = site_of(seed)
        self.rng = Random(f"{seed}:pools")
        self.world = build_declared(site.declared, seed=seed)
        for name in ("gpuops.rotation", "gpuops.owner", "gpuops.opt-out", "gpuops.pool"):
            self.world.custom_fields.define(name)
        with policies_read_quickly():
            self.policy = parse_policy(site.policy, "pools")
        self._left: int | None = None
        """Points until the process of now is killed; None = it is not, or at the point that is aimed at."""
        self._aimed: str | None = None
        self._ids = Random(f"{seed}:ids")
        self._state = state
        self._store = NightStore(self._point, lambda: len(self.world.ledger), lambda: False)
        self._showing = Showing(self.world)
        guests = MadePoolGuests(self.world, Random(f"{seed}:guests"), self._point)
        self.story = PoolStory(seed, site, self.world, guests)
        self._vms: dict[str, Any] = {vm.name: vm for vm in self.world.by_type("VirtualMachine")}
        for vm in self._vms.values():
            vm.state.console_connections = 0
        self._runs: tuple[Deed, ...] = (self._night_call, self._return_call, self._resume_call)
        self._report: Report | None = None
        self._answers: list[PoolAnswer] = []

    def play(self) -> PoolStory:
        with self.world.lock, policies_read_quickly(), self._with_points():
            self.world.clock.advance_to(FIRST + 30 * MINUTE)
            for wish in self.story.site.pools:
                self._until_done(partial(self._create, wish))
            for number in range(NIGHTS):
                midnight = FIRST.replace(hour=0) + timedelta(days=number)
                self._night(midnight, killed=number < NIGHTS - 1)
                self._day(midnight + timedelta(days=1))
            self.world.clock.advance(timedelta(hours=8).total_seconds())
            for _ in range(3):
                self._process(self._due, killed=False)
                self.world.clock.advance(60)
            self.story.last = self._look()
            self.story.left = {each.id for book in self._books() for each in book.leases if each.holds}
            self.story.left -= self.story.last.lent
        return self.story

    # --- what happens when ---------------------------------------------------------------------------------------

    def _night(self, midnight: datetime, *, killed: bool) -> None:
        """From an hour before the window opens until half an hour after desktops are due."""
        rng, guests = self.rng, self.story.guests
        guests.troubled = True
        opens = midnight + timedelta(hours=OPENS)
        closes, due_back = midnight + timedelta(hours=CLOSES), midnight + timedelta(hours=BACK_BY)
        calls: list[tuple[datetime, Deed]] = [(opens + each * MINUTE, self._night_call) for each in (0, 25, 90)]
        every = rng.choice([7, 13, 20])
        calls += [(opens + each * MINUTE, self._due) for each in range(rng.randrange(-40, -20), 180, every)]
        calls += [(closes + each * MINUTE, self._return_call) for each in (0, 20, 45, 60)]
        calls += [(closes + each * MINUTE, self._due) for each in (8, 30, 50)]
        if rng.random() < 0.2:
            calls.append((closes - rng.randrange(20, 100) * MINUTE, self._return_call))  # somebody wants them earlier
        calls += [(at + 12 * MINUTE, self._resume_call) for at in (opens, closes) if rng.random() < 0.4]
        people = [self._lend] * 5 + [self._give_back]
        calls += [(opens + rng.randrange(-50, -2) * MINUTE, self._lend) for _ in range(rng.randint(2, 4))]
        calls += [(opens + rng.randrange(-10, 150) * MINUTE, rng.choice(people)) for _ in range(rng.randint(4, 7))]
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            calls.append((opens + rng.randrange(-45, 170) * MINUTE, self._hits))
        self.story.evenings[midnight] = self._powers()
        for at, deed in sorted(calls, key=lambda each: each[0]):
            if at >= closes + 40 * MINUTE:
                guests.troubled = False
            self._until(at)
            often = 0.7 if deed in self._runs else 0.45
            self._process(deed, killed=killed and guests.troubled and rng.random() < often)
        self._until(due_back)
        morning = Morning(midnight, self._powers(), self._named())
        for each in (3, 13, 23):
            self._until(due_back + each * MINUTE)
            self._process(self._due, killed=False)
        morning.after = self._look()
        morning.told = " ".join(line for each in self._answers for line in (*each.failed, *each.warnings))
        self.story.mornings.append(morning)

    def _day(self, midnight: datetime) -> None:
        """Somebody starts what is off, and gives servers to their pools again."""
        self._until(midnight + timedelta(hours=9))
        for name in (*self.story.site.servers, *self.story.site.clients):
            vm = self._vms[name]
            if vm.state.power is Power.OFF and not name.startswith("lend-"):
                power.power_on(vm, somebody(self.world, "PowerOnVM_Task"), None)
        self.world.clock.advance(600)
        self._process(self._due, killed=False)
        for book in self._books():
            for each in book.servers:
                if each.state is not ServerState.SERVING and self._vms[each.name].state.power is Power.ON:
                    again = Reclaim(server=each.name, again=True)
                    self._process(partial(self._reclaim, book.pool.name, again), killed=False)
                    self.story.mended.append((self.world.clock.now(), each.name))
        self._process(self._due, killed=False)

    def _powers(self) -> dict[str, Power]:
        return {name: vm.state.power for name, vm in self._vms.items()}

    def _look(self) -> Look:
        guests, books, now = self.story.guests, self._books(), self.world.clock.now()
        leases = [each for book in books for each in book.leases]
        return Look(
            now, self._powers(),
            {name for name in self.story.site.servers if guests.serves(self._vms[name])},
            {each.name for book in books for each in book.servers if each.state is ServerState.SERVING},
            [(each.server, each.lease) for each in guests.live()],
            [(each.client, each.lease) for each in guests.lets if each.left is None],
            {each.id for each in leases if each.state is LeaseState.LENT and each.ends_at and each.ends_at > now},
            [(share.server, each.id) for each in leases if each.holds for share in each.shares],
        )  # fmt: skip

    def _until(self, at: datetime) -> None:
        if self.world.clock.now() < at:
            self.world.clock.advance_to(at)

    def _until_done(self, deed: Deed) -> None:
        while not self._process(deed, killed=self.rng.random() < 0.3):
            self.world.clock.advance(60)

    # --- one process ---------------------------------------------------------------------------------------------

    def _process(self, deed: Deed, *, killed: bool) -> bool:
        """Whether it came to its end."""
        before = self._left, self._aimed
        self._left = self._aimed = None
        if killed and self.rng.random() < 0.6:  # at a point that is named, else at any
            self._aimed = self.rng.choice(sorted(RUNS if deed in self._runs else CALLS_FOR_POOLS))
        elif killed:
            self._left = self.rng.randint(1, self.rng.choice([4, 12, 40]))
        vcenter = DirectVcenter(self.world, self._point, None, self._showing)
        place = NightPlace(cast(Vcenter, vcenter), self._state, self.world.clock.now, store=self._store)
        began = self.world.clock.now()
        place.same_time, place.pause, place.say = True, self._pause, self.story.told.append
        place.passed_s = lambda: (self.world.clock.now() - began).total_seconds()
        try:
            deed(place)
        except Killed:
            self.world.clock.advance(60)
            return False
        except GpuopsError as error:
            self.story.errors.append(f"{type(error).__name__}: {error.message}")
            self.story.told.append(error.line)
            return True
        finally:
            vcenter.close()
            self._left, self._aimed = before
        return True

    def _pause(self, seconds: float) -> None:
        """While a night waits, the clock calls for the pools, and somebody asks for something."""
        self.world.clock.advance(seconds)
        if seconds < 20:
            return
        self.story.met["night waits"] += 1
        if self.rng.random() < 0.6:
            self._process(self.rng.choice([self._due, self._due, self._lend]), killed=False)

    def _point(self, what: str) -> None:
        if self._left is not None:
            self._left -= 1
        point = _NAME.sub("", what)
        if self._left == 0 or point == self._aimed:
            self._left = self._aimed = None
            self.story.kills[point] += 1
            raise Killed(what)

    # --- deeds ---------------------------------------------------------------------------------------------------

    def _create(self, wish: Any, place: NightPlace) -> None:
        self._heard(running.create(wish, place, apply=True))

    def _night_call(self, place: NightPlace) -> None:
        self._reported(rotation.rotate_night(self.policy, place, apply=True, unattended=True, told=self._heard))

    def _return_call(self, place: NightPlace) -> None:
        self.story.returns.append(self.world.clock.now())
        self._reported(rotation.rotate_day(self.policy, place, apply=True, told=self._heard))

    def _resume_call(self, place: NightPlace) -> None:
        """Somebody has the run that was cut off go on; which may be a return."""
        self.story.returns.append(self.world.clock.now())
        report = rotation.resume(place, unattended=True, told=self._heard)
        self.story.met["run resumed" if report.outcomes else "nothing to resume"] += 1
        self._reported(report)

    def _due(self, place: NightPlace) -> None:
        self._answers = []
        for wish in self.story.site.pools:
            self._reclaim(wish.pool.name, Reclaim(), place)

    def _reclaim(self, pool: str, wanted: Reclaim, place: NightPlace) -> None:
        self._heard(running.reclaim(pool, wanted, place, by_night.nobody_told, apply=True))

    def _lend(self, place: NightPlace) -> None:
        # by day the servers that nights give lend nothing
        pools = self.story.site.pools if self.rng.random() < 0.5 else self.story.site.pools[:1]
        pool = self.rng.choice(pools).pool.name
        client, memory = self.rng.choice(self.story.site.clients), self.rng.choice([8, 16, 24, 40, 48]) * 1024
        lasts = self.rng.choice([30, 60, 120, 300]) * MINUTE
        gpus = self.rng.choice([1, 1, 1, 2]) if self.story.site.several else 1
        answer = running.lend(pool, ShareRequest(client, memory, lasts, gpus), place, apply=True)
        self._heard(answer)
        self.story.met["lend refused" if answer.rejections else "lend asked"] += 1

    def _give_back(self, place: NightPlace) -> None:
        held = [(book.pool.name, each) for book in self._books() for each in book.leases if each.open]
        if held:
            pool, lease = self.rng.choice(held)
            self.story.returned.append((self.world.clock.now(), lease.client))
            self._heard(running.give_back(pool, lease.client, place, apply=True))
            self.story.met["lease returned"] += 1

    def _hits(self, place: NightPlace) -> None:
        """Somebody turns a server or a client off, starts it anew, or ends a server's program."""
        site = self.story.site
        running_now = [each for each in (*sorted(site.servers), *site.clients)
                       if self._vms[each].state.power is Power.ON]  # fmt: skip
        if not running_now:
            return
        name = self.rng.choice(running_now)
        vm, is_server = self._vms[name], name in site.servers
        what = self.rng.choice(["off", "anew", "program"] if is_server else ["off"])
        self.story.hit.append((self.world.clock.now(), name))
        self.story.met[f"{'server' if is_server else 'client'} {what}"] += 1
        if what == "off":
            power.stop(vm, somebody(self.world, "PowerOffVM_Task"), clean=False)
        elif what == "anew":
            power.reset(vm, somebody(self.world, "ResetVM_Task"))
        else:
            self.story.guests.programs.pop(name, None)

    # --- what calls told -----------------------------------------------------------------------------------------

    def _heard(self, answer: PoolAnswer) -> None:
        """The receiver of a notice, who does not answer now and then."""
        if self.story.guests.troubled and self.rng.random() < 0.1:
            self.story.met["notice not answered"] += 1
            self.world.clock.advance(30)
        self._answers.append(answer)
        self.story.told += [*answer.failed, *answer.warnings]

    def _reported(self, report: Report) -> None:
        self._report = report
        self.story.told += [*map(str, report.plan.unmet), *report.plan.warnings]

    def _named(self) -> set[str]:
        """VMs that the last report of a return tells of."""
        report = self._report
        if report is None:
            return set()
        failed = [each.reason for each in report.outcomes if each.verdict is Verdict.FAILED]
        said = " ".join((*map(str, report.plan.unmet), *report.plan.warnings, *failed))
        return {name for name in self._vms if re.search(rf"\b{name}\b", said)}

    def _books(self) -> list[LeaseBook]:
        with PoolBooks.to_read(self._state, "", self.world.get("ServiceInstance").instance_uuid) as books:
            return [book for name in books.names() if (book := books.read(name)) is not None]

    @contextmanager
    def _with_points(self) -> Iterator[None]:
        """Changes of books are points too, and all guests are made up."""
        change = PoolBooks.change

        def changed(books: PoolBooks, name: str, *words: Any) -> tuple[LeaseBook | None, LeaseBook]:
            self._point("before change")
            before, after = change(books, name, *words)
            if after != before:
                self.story.books.append((self.world.clock.now(), after))
                self._counted(before, after)
            self._point("after change")
            return before, after

        def one_after_the_other(works: Sequence[Callable[[], object]], limit_s: float) -> bool:
            """In the thread of the story, which alone may move its clock."""
            for work in works:
                work()
            return True

        made_database(self._state, "").close()
        kept = KeptDatabase(sqlite_engine(str(self._state / "pools.sqlite")), "pools")
        program = cache(load_program)
        with (
            patch.object(PoolBooks, "change", changed),
            patch.object(pool_book, "made_database", lambda *words: kept),
            patch.object(pool_book, "found_database", lambda *words: kept),
            patch.object(by_night, "side_by_side", one_after_the_other),
            patch.object(clients, "guest_work", lambda vcenter: self.story.guests),
            patch.object(clients, "ClientCall", ClientWords),
            patch.object(servers, "ServerCall", ServerWords),
            patch.object(guest_work, "load_program", program),
            patch.object(running, "load_program", program),
            patch.object(secrets, "token_hex", lambda size: f"{self._ids.getrandbits(8 * size):0{2 * size}x}"),
        ):
            yield
        kept.engine.dispose()

    def _counted(self, before: LeaseBook | None, after: LeaseBook) -> None:
        """What the tally asks for."""
        was = {each.id: each for each in before.leases} if before is not None else {}
        for lease in after.leases:
            old = was.get(lease.id)
            if old is None or old.state is not lease.state:
                self.story.met[f"lease {lease.state}"] += 1
            if lease.state is LeaseState.ENDING and lease.because == "its time is over" and old != lease:
                self.story.met["lease expires"] += 1
        states = {each.name: each for each in before.servers} if before is not None else {}
        for server in after.servers:
            earlier = states.get(server.name)
            if earlier is not None and earlier.state is not server.state:
                by = f" {server.night.by_night}" if server.night is not None else ""
                self.story.met[f"server {server.state}{by}"] += 1
                if earlier.night is not None and server.state is ServerState.SERVING and server.night is None:
                    self.story.met["server lends again"] += 1


def play(seed: int) -> PoolStory:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        return PoolNights(seed, Path(folder)).play()
