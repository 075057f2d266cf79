"""A few small vCenters in processes of their own, one PostgreSQL, and runners.

Each runner has a state directory of its own, as on another machine, and a process group of its own, so that a runner
and what it plays are killed or stopped together.
"""

from __future__ import annotations

import json
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
from gpuops.sim.wire.ready_file import ReadyFile, read
from gpuops.sim.wire.sim_client import SimClient
from tests.kills.world import Files, make
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
READY_S: Final = 90.0
EVENING, MORNING = clock_time(22, 5), clock_time(5, 35)
WINDOW: Final = {"opens": "22:00", "closes": "05:30", "back_by": "07:00", "zone": "UTC"}


@dataclass(slots=True)
class Site:
    """One vCenter: what its simulator says of itself, and the policy of its nights."""

    name: str
    folder: Path
    ready: ReadyFile

    @property
    def policy(self) -> Path:
        return self.folder / "seen" / "policy.yaml"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"

    @property
    def client(self) -> SimClient:
        return SimClient(self.ready)

    def done(self, method: str) -> list[str]:
        """The VMs to which that was done, in order."""
        return [each["name"] for each in self.client.ledger() if each["method"] == method]


@dataclass(slots=True)
class Fleet:
    """Everything but the runners' processes."""

    folder: Path
    url: str
    """Of the PostgreSQL database."""
    sites: list[Site]
    runners: list[Runner] = field(default_factory=list)
    program: str = "gpuops"
    """The module that a runner is started by."""

    @property
    def configuration(self) -> Path:
        return self.folder / "config.toml"

    @property
    def bare_url(self) -> str:
        """Without its password, as the configuration file says it."""
        return self.url.replace(f":{urlsplit(self.url).password}@", "@")

    def write_configuration(self) -> None:
        hosts = sorted({str(urlsplit(site.ready.url).hostname) for site in self.sites})
        lines = ["[fleet]", f"url = {json.dumps(self.bare_url)}", f"vcenters = {json.dumps(hosts)}", ""]
        for site in self.sites:
            url = urlsplit(site.ready.url)
            lines += [
                f"[targets.{site.name}]",
                f"host = {json.dumps(url.hostname)}",
                f"port = {url.port}",
                f"username = {json.dumps(site.ready.username)}",
                f"password_file = {json.dumps(str(site.password_file))}",
                f"ca_file = {json.dumps(site.ready.ca_file)}",
                f"rotations = [{json.dumps(str(site.policy))}]",
                "",
            ]
        self.configuration.write_text("\n".join(lines), encoding="utf-8")

    def runner(self, at: clock_time) -> Runner:
        """A new runner whose clock shows that time of day, and goes on."""
        made = Runner(self, len(self.runners) + 1, at)
        self.runners.append(made)
        return made

    def command(self, *words: str, at: clock_time, state: str = "typed") -> subprocess.CompletedProcess[str]:
        """What a person types on any machine."""
        return subprocess.run(
            [sys.executable, "-m", "gpuops", *words], cwd=self.folder, env=self.environment(at, state),
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120, check=False,
        )  # fmt: skip

    def environment(self, at: clock_time, state: str) -> dict[str, str]:
        """With a clock that shows that time of day now (`tests/surroundings/child`)."""
        now = machine_time()
        day = now.date() + timedelta(days=int(at < EVENING))
        ahead_s = (datetime.combine(day, at, UTC) - now) / timedelta(seconds=1)
        return {
            **os.environ,
            "SURROUNDINGS_AHEAD_S": str(ahead_s),
            "GPUOPS_CONFIG": str(self.configuration),
            "GPUOPS_STATE_DIR": str(self.folder / state),
            "PGPASSWORD": unquote(urlsplit(self.url).password or ""),
        }


@dataclass(slots=True)
class Runner:
    """One `gpuops runner run`, with the processes that it starts."""

    fleet: Fleet
    number: int
    at: clock_time
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.fleet.program, "runner", "run"], cwd=self.fleet.folder,
                env=self.fleet.environment(self.at, f"machine-{self.number}"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> Path:
        return self.fleet.folder / f"runner-{self.number}.log"

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def signal(self, number: signal.Signals) -> None:
        """To the runner and all that it plays."""
        os.killpg(self.process.pid, number)

    def plays(self) -> bool:
        """Whether a process that it started runs."""
        others = (each for each in Path("/proc").glob("[0-9]*/stat") if each.parent.name != str(self.process.pid))
        return any(_group_of(each) == self.process.pid for each in others)

    def end(self) -> int:
        """Ends it as systemd does; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=120)


def _group_of(stat: Path) -> int | None:
    """The process group of a process that runs (proc(5)); None = it has ended."""
    try:
        state, _, group = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return int(group) if state != "Z" else None


@contextmanager
def fleet(folder: Path, url: str, count: int, seed: int = 0) -> Iterator[Fleet]:
    """So many vCenters; no process is left at the end."""
    sites: list[Site] = []
    processes: list[subprocess.Popen[bytes]] = []
    made = Fleet(folder, url, sites)
    try:
        for number in range(count):
            where = folder / f"site-{number}"
            make(seed + number, Files(where / "seen"))
            policy = yaml.safe_load((where / "seen" / "policy.yaml").read_text(encoding="utf-8"))
            policy["windows"] = [WINDOW]
            policy["name"] = f"nights-{number}"
            (where / "seen" / "policy.yaml").write_text(yaml.safe_dump(policy), encoding="utf-8")
            command = [sys.executable, "-m", "gpuops", "sim", "serve", "--clock", "stepped"]
            command += ["--seed", str(seed + number)]  # two vCenters have no instance uuid of a VM in common
            command += ["--scenario", str(where / "seen" / "scenario.yaml"), "--ready-file", str(where / "ready.json")]
            with (where / "sim.log").open("wb") as log:
                processes.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        for number in range(count):
            where = folder / f"site-{number}"
            wait_until((where / "ready.json").exists, READY_S)
            sites.append(Site(f"site-{number}", where, read(where / "ready.json")))
        for site in sites:
            site.password_file.touch(mode=0o600)
            site.password_file.write_text(site.ready.password, encoding="utf-8")
        made.write_configuration()
        yield made
    finally:
        for runner in made.runners:
            print(f"runner {runner.number} said:", runner.said, sep="\n")  # pytest shows it where a test fails
            if runner.process.poll() is None:
                runner.signal(signal.SIGKILL)
            runner.process.wait(timeout=30)
        for process in processes:
            process.terminate()
            process.wait(timeout=READY_S)
