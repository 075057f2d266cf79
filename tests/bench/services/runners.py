"""Runners: nights per hour by one, two, three of them and by one machine alone; what the queue costs a turn; what a
runner of 40 vCenters costs while nothing is due.

A real PostgreSQL, real processes, simulated vCenters on the clock of the day, whose suspends take their seconds. All of
them share this machine, so that nights per hour compare the ways of playing them and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg
import yaml

from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.extras.fleet.runner.children import Children
from gpuops.extras.fleet.runner.due import SitePolicy
from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue
from gpuops.extras.fleet.runner.service import Service
from gpuops.model.nights.runners import PolicyTurn
from tests.bench.measure import python
from tests.bench.verdict import Figure, Result
from tests.execute.journal.postgres import Server, binaries, running_server
from tests.fleet.processes import ANY, DisturbedFleet, disturbed_fleet, sites_played
from tests.fleet.world import Size, policy
from tests.waiting import wait_until

SIZE: Final = Size(hosts=4, desktops=16, ml_vms=4, memory_gib=1, in_flight=4)
VCENTERS: Final = 4
TURNS: Final = 100
SITES: Final = 40
IDLE_S: Final = 60.0
TURN_MS: Final = 50.0
OF_A_NIGHT: Final = 3.0
NIGHT_S: Final = 300.0
"""So long all nights may take here."""


def run() -> Iterator[Result]:
    """On a PostgreSQL of its own."""
    found = binaries()
    if found is None:
        yield Result("runners: it needs a PostgreSQL server (apt-get install postgresql)", ())
        return
    with running_server(found) as server:
        queue = python("queue", "-m", "tests.bench.services.runners", "queue", server.database()).run().said
        idle = _idle(server)
        seconds = {runners: _nights_s(server, runners) for runners in (0, 1, 2, 3)}
    night_s = median(seconds.values())
    yield Result(
        f"runners: {TURNS} turns through the queue, one after the other",
        (
            Figure("from the offer of a turn to its beginning, median", queue["begins_ms"], "ms", TURN_MS),
            Figure("the runner's CPU time per turn", queue["cpu_ms"], "ms", TURN_MS),
            Figure(
                "both, of a night of this size", (queue["begins_ms"] + queue["cpu_ms"]) / night_s / 10, "%", OF_A_NIGHT
            ),
        ),
    )
    yield Result(
        f"runners: one with {SITES} vCenters, nothing due for {IDLE_S:.0f} s",
        (
            Figure("statements a minute", idle["statements"], ""),
            Figure("CPU time a minute", idle["cpu_s"], "s"),
            Figure("memory of the process", idle["rss_mib"], "MiB"),
        ),
    )
    yield Result(
        f"runners: nights of {VCENTERS} vCenters of {SIZE.hosts} hosts and {SIZE.desktops} desktops",
        tuple(
            Figure(
                f"nights an hour, {f'{runners} runners' if runners else 'one machine, no queue'}",
                3600 * VCENTERS / took,
                "",
            )
            for runners, took in seconds.items()
        ),
    )


def _nights_s(server: Server, runners: int) -> float:
    """Seconds from the first connection to a vCenter to the end of the last night; 0 runners = as cron calls it."""
    with (
        TemporaryDirectory(prefix="gpuops-bench-") as folder,
        disturbed_fleet(Path(folder), server.database(), [SIZE] * VCENTERS) as fleet,
    ):
        made = fleet.command("runner", "init", at=ANY)
        assert made.returncode == 0, made.stderr
        fleet.close_after(NIGHT_S + 60)
        if runners:
            for _ in range(runners):
                fleet.runner(ANY)
            wait_until(lambda: all(door.came for door in fleet.doors.values()), NIGHT_S)
            wait_until(lambda: not any(sites_played(each) for each in fleet.runners), NIGHT_S)
        else:
            _alone(fleet)
        ended = time.monotonic()
        assert all(site.done("PowerOnVM_Task") for site in fleet.sites), "a night that did nothing is none"
        return ended - min(door.came[0] for door in fleet.doors.values())


def _alone(fleet: DisturbedFleet) -> None:
    """A process for each vCenter, as a line of cron each would start it, with the journal in a file."""
    text = fleet.configuration.read_text(encoding="utf-8")
    fleet.configuration.write_text(text[text.index("[targets.") :], encoding="utf-8")
    nights = [
        subprocess.Popen(
            [sys.executable, "-m", "gpuops", "rotate", "night", "--policy", str(site.policy), "--yes", "--quiet",
             "--vcenter", site.name],
            cwd=fleet.folder, env=fleet.environment(ANY, "alone"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for site in fleet.sites
    ]  # fmt: skip
    codes = [each.wait(timeout=NIGHT_S) for each in nights]
    assert codes == [0] * len(codes), codes


def _idle(server: Server) -> dict[str, Any]:
    """What a runner without a due turn costs; its statements by the counters of PostgreSQL."""
    url = server.database()
    said = dict(python("idle", "-m", "tests.bench.services.runners", "idle", url).run().said)
    with psycopg.connect(url) as connection:
        counted = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert counted is not None
    return {**said, "statements": counted[0] * 60 / IDLE_S}


class _NoChildren(Children):
    """Turns end at once, as those with nothing to do."""

    async def _run(
        self, words: tuple[str, ...], about: str, more: Mapping[str, str] | None = None, *, errors_alone: bool = False
    ) -> int:
        return 0


async def _queue(url: str) -> dict[str, float]:
    """Each turn is offered when the one before has begun."""
    begun = asyncio.Event()

    async def play(turn: PolicyTurn) -> None:
        begun.set()

    sites = [f"site-{number}" for number in range(TURNS)]
    async with ProcrastinateQueue(url).opened() as queue:
        await queue.make()
        serving = asyncio.create_task(queue.serve(lambda: sites, play))
        await asyncio.sleep(2)
        took_s, before_s = [], time.process_time()
        for site in sites:
            begun.clear()
            offered = time.perf_counter()
            await queue.offer(PolicyTurn(site, "nights"), datetime(2026, 11, 2, 22, tzinfo=UTC))
            await begun.wait()
            took_s.append(time.perf_counter() - offered)
        cpu_s = time.process_time() - before_s
        queue.stop()
        await serving
    return {"begins_ms": 1000 * median(took_s), "cpu_ms": 1000 * cpu_s / TURNS}


async def _stand_by(url: str) -> dict[str, float]:
    """A runner whose turns end at once; measured after those of its beginning."""
    known = SitePolicy(parse_policy(yaml.safe_dump(policy("nights", "22:09", SIZE)), "nights"), Path("nights.yaml"))
    rotations = {f"site-{number}": {"nights": known} for number in range(SITES)}
    async with ProcrastinateQueue(url).opened() as queue:
        await queue.make()
        service = Service(queue, rotations, _NoChildren({}), print, load=lambda _, policy: policy)
        running = asyncio.create_task(service.run())
        while wall_clock().minute % 10 == 9:  # no turn becomes due while it is measured
            await asyncio.sleep(1)
        await asyncio.sleep(15)
        await queue._app.connector.execute_query_async("SELECT pg_stat_reset()")
        before_s, began = time.process_time(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        cpu_s = (time.process_time() - before_s) * timedelta(minutes=1).total_seconds() / (time.monotonic() - began)
        service.end()
        await running
    return {"cpu_s": cpu_s, "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__" and sys.argv[1:]:
    print(json.dumps(asyncio.run({"queue": _queue, "idle": _stand_by}[sys.argv[1]](sys.argv[2]))))
