"""Plays a story on real processes, and tells what was seen of it."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from tests.execute.journal.postgres import Server
from tests.fleet.chaos import RUNNERS, Event, Story, Trouble
from tests.fleet.check import AWAY, FleetSeen, SiteSeen, marked_names, powers
from tests.fleet.processes import ANY, DisturbedFleet, disturbed_fleet, sites_played
from tests.fleet.world import MARKER, desktop_names
from tests.harness.fleet import Runner

LOOK_S: Final = 0.5


@dataclass(slots=True)
class Played:
    """What was seen, and how long it took."""

    story: Story
    seen: FleetSeen
    done: list[str] = field(default_factory=list)
    """The troubles as they came, with what they hit."""
    suspended: int = 0
    back_s: float = 0.0
    """From the closing of the window to the last desktop; negative = before it."""


@dataclass(slots=True)
class _Overtaking:
    """A runner's turn that another one has to take over."""

    site: str
    since_s: float
    """time.monotonic"""


class Play:
    """One story while it is played."""

    def __init__(self, story: Story, fleet: DisturbedFleet, server: Server) -> None:
        self.story, self.fleet, self.server = story, fleet, server
        self.closes_s = 0.0
        self.ledgers: dict[str, list[dict[str, Any]]] = {site.name: [] for site in fleet.sites}
        self.played = Played(story, FleetSeen([]))
        self._overtakings: list[_Overtaking] = []
        self._gone: set[int] = set()
        """Numbers of the runners that were killed or told to end, or stand still now."""
        self._undoing: list[threading.Thread] = []

    def play(self) -> Played:
        completed = self.fleet.command("runner", "init", at=ANY)
        if completed.returncode:
            raise RuntimeError(completed.stderr)
        self.fleet.close_after(self.story.night_s)
        self.closes_s = time.monotonic() + self.story.night_s
        for _ in range(self.story.runners):
            self.fleet.runner(ANY)
        while not self._has_begun() and time.monotonic() < self.closes_s:
            time.sleep(LOOK_S)
        began = time.monotonic()
        for event in self.story.events:
            self._until(began + event.at_s)
            self._befall(event)
        for timer in self._undoing:
            timer.join()
        self._until(self.closes_s + self.story.limit_s, until_back=True)
        self.played.back_s = time.monotonic() - self.closes_s
        return self._observe()

    # while it goes on

    def _read(self) -> None:
        for site in self.fleet.sites:
            ledger = self.ledgers[site.name]
            for entry in site.client.ledger(after_sequence=len(ledger)):
                at = datetime.fromisoformat(entry["at"]) + timedelta(seconds=self.fleet.later_s)
                ledger.append({**entry, "at": at.isoformat()})

    def _has_begun(self) -> bool:
        self._read()
        return any(entry["method"] == AWAY for ledger in self.ledgers.values() for entry in ledger)

    def _until(self, moment_s: float, *, until_back: bool = False) -> None:
        while (left_s := moment_s - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left_s))
            if until_back and time.monotonic() > self.closes_s:
                self._read()
                if not any(sites_played(runner) for runner in self._alive()) and self._all_back():
                    return

    def _all_back(self) -> bool:
        sites = self._sites_seen()
        return all(set(powers(site).values()) == {"poweredOn"} and not marked_names(site) for site in sites)

    # what befalls it

    def _befall(self, event: Event) -> None:
        event_text = event.trouble.value
        if event.trouble in RUNNERS:
            runner = self._runner(event.number)
            if runner is None:
                self.played.done.append(f"{event_text}: no runner is left for it")
                return
            event_text += f" runner {runner.number}, which plays {', '.join(sites_played(runner)) or 'nothing'}"
            self._to_runner(event, runner)
        elif event.trouble is Trouble.RESTART:
            self.server.stop()
            time.sleep(event.for_s)
            self.server.start()
        else:
            site = self.fleet.sites[event.number % len(self.fleet.sites)]
            event_text += f": {site.name} for {event.for_s:.0f} s"
            door = self.fleet.doors[site.name]
            door.shut()
            # the runner that should have connected could not
            self._overtakings = [
                overtaking
                for overtaking in self._overtakings
                if overtaking.site != site.name or _came(door, overtaking)
            ]
            self._later(event.for_s, door.reopen)
        self.played.done.append(f"{time.monotonic() - self.closes_s:+.1f} s: {event_text}")

    def _to_runner(self, event: Event, runner: Runner) -> None:
        playing = sites_played(runner)
        since_s = time.monotonic()
        match event.trouble:
            case Trouble.KILL:
                runner.signal(signal.SIGKILL)
                self._gone.add(runner.number)
            case Trouble.STOP:
                runner.signal(signal.SIGSTOP)
                self._gone.add(runner.number)
                self._later(event.for_s, lambda: self._go_on(runner))
            case _:
                runner.process.terminate()
                self._gone.add(runner.number)
        if event.trouble is Trouble.KILL or event.for_s > 30:  # one that wakes soon has lost nothing
            self._overtakings += [_Overtaking(site, since_s) for site in playing]

    def _go_on(self, runner: Runner) -> None:
        runner.signal(signal.SIGCONT)
        self._gone.discard(runner.number)

    def _runner(self, number: int) -> Runner | None:
        """One that plays something, else any that lives; the others must not all be gone for good."""
        alive = self._alive()
        busy = [runner for runner in alive if sites_played(runner)]
        among = busy or alive
        return among[number % len(among)] if among else None

    def _alive(self) -> list[Runner]:
        return [
            runner for runner in self.fleet.runners if runner.number not in self._gone and runner.process.poll() is None
        ]

    def _later(self, seconds: float, act: Any) -> None:
        timer = threading.Timer(seconds, act)
        timer.start()
        self._undoing.append(timer)

    # afterwards

    def _observe(self) -> Played:
        for runner in self.fleet.runners:
            if runner.process.poll() is None:
                runner.end()
        self._read()
        fleet_seen = self.played.seen
        fleet_seen.sites = self._sites_seen()
        for site, site_seen in zip(self.fleet.sites, fleet_seen.sites, strict=True):
            site_seen.journal = _records(self.fleet.url, [change["operation_id"] for change in site_seen.ledger])
            status = self.fleet.command("rotate", "status", "--vcenter", site.name, at=ANY)
            site_seen.status = status.stdout + status.stderr
            fleet_seen.bugs += site.client.bugs()
        fleet_seen.said = "\n".join(runner.said for runner in self.fleet.runners)
        for overtaking in self._overtakings:
            door = self.fleet.doors[overtaking.site]
            came = door.first_after(overtaking.since_s)
            if came is None:
                fleet_seen.not_taken_over.append(overtaking.site)
            else:
                fleet_seen.taken_over_s.append(came - overtaking.since_s)
        self.played.suspended = sum(entry["method"] == AWAY for site in fleet_seen.sites for entry in site.ledger)
        return self.played

    def _sites_seen(self) -> list[SiteSeen]:
        return [
            SiteSeen(site.name, desktop_names(size), MARKER, self.ledgers[site.name], [])
            for site, size in zip(self.fleet.sites, self.story.sizes, strict=True)
        ]


def play(story: Story, folder: Path, server: Server) -> Played:
    """The story on a new database of this server, which it may stop and start."""
    program = "tests.fleet.quick" if story.quick else "gpuops"
    with disturbed_fleet(folder, server.database(), list(story.sizes), program) as fleet:
        return Play(story, fleet, server).play()


def _came(door: Any, overtaking: _Overtaking) -> bool:
    return door.first_after(overtaking.since_s) is not None


def _records(url: str, operations: list[str]) -> list[dict[str, Any]]:
    """The journal of the vCenter that these operations are of, in order; nothing where it has none."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        journal_exists = connection.execute("SELECT to_regclass('journal') IS NOT NULL AS made").fetchone()
        if journal_exists is None or not journal_exists["made"]:  # no night has begun
            return []
        rows = connection.execute(
            "SELECT vcenter, seq, run, kind, at, body FROM journal ORDER BY vcenter, seq"
        ).fetchall()
    runs = {operation.removeprefix("gpuops-").rpartition("-")[0] for operation in operations}
    vcenters = {row["vcenter"] for row in rows if row["run"] in runs}
    return [{**row, "body": json.loads(row["body"])} for row in rows if row["vcenter"] in vcenters]
