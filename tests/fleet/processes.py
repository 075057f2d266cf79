"""The processes of a fleet: simulated vCenters on the clock of the day, each behind a door, and runners on one clock.

Runners and their turns show one time of day: the window closes so many seconds after the first of them was started. The
vCenters, which were started before that, show an earlier one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import yaml

from gpuops.clock import machine_time
from gpuops.sim.wire.ready_file import read
from tests.fleet.door import Door
from tests.fleet.world import Size, policy, scenario
from tests.runner.fleet import READY_S, ROOT, Fleet, Runner, Site
from tests.waiting import wait_until

CHILD: Final = ROOT / "tests" / "surroundings" / "child"
CLOSES: Final = clock_time(22, 9)
"""A minute before a full ten minutes: a return that fails is offered again a minute later."""
ANY: Final = clock_time(0)


@dataclass(slots=True)
class DisturbedFleet(Fleet):
    """A fleet on one clock, whose vCenters can be cut off."""

    ahead_s: float = 0.0
    """By so much its time of day is ahead of this machine's."""
    later_s: float = 0.0
    """By so much it is ahead of the vCenters' time."""
    doors: dict[str, Door] = field(default_factory=dict)
    """By name of the site."""

    def environment(self, at: clock_time, state: str) -> dict[str, str]:
        """Whatever `at` is: its clock shows what those of all others do."""
        earlier = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(CHILD), *earlier, str(ROOT)]),
            "SURROUNDINGS_AHEAD_S": str(self.ahead_s),
            "GPUOPS_CONFIG": str(self.configuration),
            "GPUOPS_STATE_DIR": str(self.folder / state),
            "PGPASSWORD": unquote(urlsplit(self.url).password or ""),
        }

    def close_after(self, seconds: float) -> None:
        """From now on its clocks show that the window closes after so many seconds."""
        before = self.ahead_s
        self.ahead_s = _ahead_s(seconds)
        self.later_s += self.ahead_s - before

    def now(self) -> datetime:
        """The time of day of the fleet."""
        return machine_time() + timedelta(seconds=self.ahead_s)


def sites_played(runner: Runner) -> list[str]:
    """The vCenters of which a process of that runner runs now (proc(5))."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group = os.getpgid(int(folder.name))
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if group == runner.process.pid and "rotate" in words and "--vcenter" in words:
            found.add(words[words.index("--vcenter") + 1])
    return sorted(found)


@contextmanager
def disturbed_fleet(folder: Path, url: str, sizes: list[Size], program: str = "gpuops") -> Iterator[DisturbedFleet]:
    """A vCenter of each size. No process is left at the end."""
    made = DisturbedFleet(folder, url, [], program=program, ahead_s=_ahead_s(0))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for number, size in enumerate(sizes):
            where = folder / f"site-{number}"
            (where / "seen").mkdir(parents=True)
            (where / "scenario.yaml").write_text(yaml.safe_dump(scenario(size)), encoding="utf-8")
            told = policy(f"nights-{number}", f"{CLOSES:%H:%M}", size)
            (where / "seen" / "policy.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
            servers.append(_server(made, where))
        for number, server in enumerate(servers):
            where = folder / f"site-{number}"
            _wait_for(server, where)
            ready = read(where / "ready.json")
            site = Site(f"site-{number}", where, ready)
            site.password_file.touch(mode=0o600)
            site.password_file.write_text(ready.password, encoding="utf-8")
            made.sites.append(site)
            made.doors[site.name] = Door(urlsplit(ready.url).port or 443)
        made.write_configuration()
        text = made.configuration.read_text(encoding="utf-8")
        for site in made.sites:
            text = text.replace(f"port = {urlsplit(site.ready.url).port}\n", f"port = {made.doors[site.name].port}\n")
        made.configuration.write_text(text, encoding="utf-8")
        yield made
    finally:
        for runner in made.runners:
            if runner.process.poll() is None:
                runner.signal(signal.SIGKILL)
            runner.process.wait(timeout=30)
        for door in made.doors.values():
            door.close()
        for server in servers:
            server.terminate()
            server.wait(timeout=READY_S)


def _server(fleet: Fleet, where: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gpuops", "sim", "serve", "--clock", "real"]
    command += ["--scenario", str(where / "scenario.yaml"), "--ready-file", str(where / "ready.json")]
    with (where / "sim.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=fleet.folder, env=fleet.environment(ANY, "sim"), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip


def _wait_for(server: subprocess.Popen[bytes], where: Path) -> None:
    wait_until(lambda: (where / "ready.json").exists() or server.poll() is not None, READY_S)
    if server.poll() is not None:
        raise RuntimeError(f"no simulated vCenter: {(where / 'sim.log').read_text(encoding='utf-8')}")


def _ahead_s(night_s: float) -> float:
    now = machine_time()
    closes = datetime.combine(now.date(), CLOSES, UTC)
    return (closes - now) / timedelta(seconds=1) - night_s
