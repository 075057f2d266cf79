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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml

from gpuops.clock import machine_time
from gpuops.sim.wire.sim_client import ReadyFile, SimClient
from tests.harness.office import drawn_office
from tests.harness.simulator import ROOT, SimulatorProcess

CHILD: Final = ROOT / "tests" / "surroundings" / "child"
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
        return self.folder / "policy.yaml"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"

    @property
    def client(self) -> SimClient:
        return SimClient(self.ready)

    def done(self, method: str) -> list[str]:
        """The VMs to which that was done, in order."""
        return [change["name"] for change in self.client.ledger() if change["method"] == method]


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
            lines += [
                f"[targets.{site.name}]",
                f"host = {json.dumps(urlsplit(site.ready.url).hostname)}",
                f"port = {self.port_of(site)}",
                f"username = {json.dumps(site.ready.username)}",
                f"password_file = {json.dumps(str(site.password_file))}",
                f"ca_file = {json.dumps(site.ready.ca_file)}",
                f"rotations = [{json.dumps(str(site.policy))}]",
                "",
            ]
        self.configuration.write_text("\n".join(lines), encoding="utf-8")

    def port_of(self, site: Site) -> int:
        """The port by which runners reach that vCenter."""
        return urlsplit(site.ready.url).port or 443

    def runner(self, at: clock_time) -> Runner:
        """A new runner whose clock shows that time of day, and goes on."""
        new_runner = Runner(self, len(self.runners) + 1, at)
        self.runners.append(new_runner)
        return new_runner

    def command(self, *words: str, at: clock_time) -> subprocess.CompletedProcess[str]:
        """What a person types on any machine."""
        return subprocess.run(
            [sys.executable, "-m", "gpuops", *words], cwd=self.folder, env=self.environment(at, "typed"),
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120, check=False,
        )  # fmt: skip

    def seconds_ahead(self, at: clock_time) -> float:
        """By so much a clock that shows that time of day now is ahead of this machine's."""
        now = machine_time()
        day = now.date() + timedelta(days=int(at < EVENING))
        return (datetime.combine(day, at, UTC) - now) / timedelta(seconds=1)

    def environment(self, at: clock_time, state: str) -> dict[str, str]:
        """With a clock that shows that time of day now (`tests/surroundings/child`)."""
        paths = [str(CHILD), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "SURROUNDINGS_AHEAD_S": str(self.seconds_ahead(at)),
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
        other_processes = (
            stat_file
            for stat_file in Path("/proc").glob("[0-9]*/stat")
            if stat_file.parent.name != str(self.process.pid)
        )
        return any(_group_of(stat_file) == self.process.pid for stat_file in other_processes)

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
def serving(
    served_fleet: Fleet, worlds: Sequence[tuple[Any, Any]], *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Serve a vCenter for each scenario with the policy of its nights. No process is left at the end."""
    simulators: list[SimulatorProcess] = []
    try:
        for number, (scenario, policy) in enumerate(worlds):
            where = served_fleet.folder / f"site-{number}"
            where.mkdir(parents=True)
            for name, document in (("scenario", scenario), ("policy", policy)):
                (where / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
            # with a seed of its own: two vCenters have no instance uuid of a VM in common
            options = ("--seed", str(number), *flags)
            simulators.append(SimulatorProcess(where, where / "scenario.yaml", *options, environment=environment))
        for number, process in enumerate(simulators):
            site = Site(f"site-{number}", served_fleet.folder / f"site-{number}", process.wait_ready())
            site.password_file.touch(mode=0o600)
            site.password_file.write_text(site.ready.password, encoding="utf-8")
            served_fleet.sites.append(site)
        served_fleet.write_configuration()
        yield
    finally:
        for runner in served_fleet.runners:
            print(f"runner {runner.number} said:", runner.said, sep="\n")  # pytest shows it where a test fails
            if runner.process.poll() is None:
                runner.signal(signal.SIGKILL)
            runner.process.wait(timeout=30)
        for process in simulators:
            process.end()


@contextmanager
def fleet(folder: Path, url: str, count: int) -> Iterator[Fleet]:
    """So many vCenters of drawn offices."""
    new_fleet = Fleet(folder, url, [])
    worlds = [drawn_office(Random(number)) for number in range(count)]
    for number, (_, policy) in enumerate(worlds):
        policy |= {"windows": [WINDOW], "name": f"nights-{number}"}
    with serving(new_fleet, worlds, "--clock", "stepped"):
        yield new_fleet
