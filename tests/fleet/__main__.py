"""python -m tests.fleet night [--vcenters N] [--hosts N] [--desktops N] [--in-flight N] [--night-s S]
python -m tests.fleet runs --seeds FIRST:END [--jobs N]

One night of several vCenters with three runners, of which one is killed and one stands still, while PostgreSQL restarts
and a vCenter is away; or small ones drawn by seed. Exit code 1 where anything was lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.execute.journal.postgres import Server, binaries, running_server
from tests.fleet.chaos import Story, drawn, whole
from tests.fleet.check import violations
from tests.fleet.play import Played, play
from tests.fleet.world import Size


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description="Nights of several runners, disturbed.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    night = verbs.add_parser("night", help="one night with every trouble")
    night.add_argument("--vcenters", type=int, default=4)
    night.add_argument("--hosts", type=int, default=250, help="of each vCenter")
    night.add_argument("--desktops", type=int, default=2500, help="of each vCenter")
    night.add_argument("--in-flight", type=int, default=64)
    night.add_argument("--memory-gib", type=int, default=1, help="of a desktop: the more, the longer a suspend takes")
    night.add_argument("--night-s", type=float, default=1500, help="from the start to the closing of the window")
    runs = verbs.add_parser("runs", help="small nights, drawn by seed")
    runs.add_argument("--seeds", default="0:200", help="FIRST:END, END not among them")
    runs.add_argument("--jobs", type=int, default=1, help="so many at once, each with a PostgreSQL of its own")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # no process is left
    if chosen.verb == "night":
        size = Size(chosen.hosts, chosen.desktops, chosen.hosts, chosen.memory_gib, chosen.in_flight)
        return 1 if _play_and_print(whole(size, chosen.vcenters, chosen.night_s)) else 0
    first, _, end = chosen.seeds.partition(":")
    return _runs(range(int(first), int(end)), chosen.jobs)


def _runs(seeds: range, jobs: int) -> int:
    began, ends = time.monotonic(), Counter[str]()
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for finished in as_completed([pool.submit(_run, seed) for seed in seeds]):
                ends["broken" if finished.result() else "whole"] += 1
                print(f"{sum(ends.values())} of {len(seeds)}, {ends['broken']} broken", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"{dict(ends)} in {time.monotonic() - began:.0f} s")
    return 1 if ends["broken"] else 0


def _run(seed: int) -> bool:
    return _play_and_print(drawn(seed))


def _play_and_print(story: Story) -> bool:
    """Plays it and prints what came of it; whether something is broken."""
    server_binaries = binaries()
    if server_binaries is None:
        sys.exit("it needs a PostgreSQL server: apt-get install postgresql")
    with running_server(server_binaries) as server, TemporaryDirectory(prefix="gpuops-fleet-") as folder:
        try:
            return _print(*_play_timed(story, Path(folder), server))
        except Exception as error:
            print(f"{story.name}: not played: {error!r}", flush=True)
            return True


def _play_timed(story: Story, folder: Path, server: Server) -> tuple[Played, float, float]:
    """With wall seconds and CPU seconds, those of the simulated vCenters among them."""
    began, before = time.monotonic(), os.times()
    played, used = play(story, folder, server), os.times()
    cpu_s = used.children_user + used.children_system - before.children_user - before.children_system
    return played, time.monotonic() - began, cpu_s


def _print(played: Played, seconds: float, cpu_s: float) -> bool:
    broken = violations(played.seen)
    desktops = sum(size.desktops for size in played.story.sizes)
    hosts = sum(size.hosts for size in played.story.sizes)
    taken_over = ", ".join(f"{line:.1f} s" for line in played.seen.taken_over_s) or "none"
    story_line = (
        f"{len(played.story.sizes)} vCenters, {hosts} hosts, {desktops} desktops, {played.story.runners} runners"
    )
    back = f"{played.suspended} desktops suspended; all back {played.back_s:.1f} s after the closing"
    lines = [
        f"{played.story.name}: {story_line}; {seconds:.0f} s, load {os.getloadavg()[1]:.0f} on {os.cpu_count()} cores",
        *(f"  {line}" for line in played.done),
        f"  {back}; taken over after {taken_over}; {cpu_s:.0f} CPU s",
        *(f"  BROKEN {line}" for line in broken),
    ]
    if broken:
        lines += ["  what was said:", *(f"    {line}" for line in played.seen.said.splitlines())]
    print("\n".join(lines), flush=True)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
