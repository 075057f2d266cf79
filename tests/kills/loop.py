"""The kill loop: real `gpuops rotate` processes against a simulated vCenter in a process of its own, over TLS, killed.

A seed gives the world, and before each run its command, its signal and its moment: after so many writes to the journal,
or after so many seconds. Each night ends with an undisturbed morning, and nights go on until enough runs were
killed; what was seen lies in files that `judge.py` reads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.wire.sim_client import SimClient
from tests.harness.office import FREE, drawn_office
from tests.harness.simulator import ROOT, simulator
from tests.renamed import running


@dataclass(frozen=True, slots=True)
class Files:
    """Where the loop puts what it made and saw; `judge.py` reads these files and nothing else.

    As JSON: `evening` (each VM before the first run: name, host, power, CPU), `ledger`, `runs` (each process: what it
    was to do, how it was ended, its exit code, what it printed), `used` (from when on somebody works on a desktop, in
    the simulated vCenter's time), and `mornings` (how many effects and runs there were when each night was over).
    """

    folder: Path

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario.yaml"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    def write(self, name: str, document: object) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def make(seed: int, files: Files) -> Random:
    """Write the world of a seed; return the dice that go on after it."""
    dice = Random(seed)
    declared, night = drawn_office(dice)
    files.folder.mkdir(parents=True)
    files.scenario.write_text(yaml.safe_dump(declared), encoding="utf-8")
    files.policy.write_text(yaml.safe_dump(night), encoding="utf-8")
    evening = [
        {"name": vm["name"], "on": vm["on"], "power": vm["power"], "cpu_mhz": vm.get("cpu_usage_mhz", 0)}
        for vm in declared["vms"]
    ]
    files.write("evening", evening)
    return dice


RUN_S: Final = 120.0
LATE_S: Final = 700.0
"""After so long what the last killed run has sent is not waited for any more."""
MORNINGS: Final = 4
NIGHTS: Final = 8
"""Limit for one world."""
LATER_S: Final = 60.0
"""So much later each next night begins: a night is named by its minute, and one that has had its morning is over."""
WORKED_ON, RENAMED = "vm.used", "vm.renamed"
HAPPENINGS: Final = (RENAMED, "vm.refiled", WORKED_ON)
"""Permanent changes to a desktop by another login; on the host that stays free, a desktop is at most renamed."""

Disturb = Callable[[subprocess.Popen[str]], str]


@dataclass(slots=True)
class Loop:
    """One world and its runs."""

    seed: int
    folder: Path
    other: Path | None = None
    """The folder of another gpuops, which plays what comes next; None = the one that is tested."""
    kills: int = 0
    later_s: float = 0.0
    runs: list[dict[str, Any]] = field(default_factory=list)
    used: list[dict[str, Any]] = field(default_factory=list)
    mornings: list[dict[str, int]] = field(default_factory=list)
    vcenter: SimClient = field(init=False)

    def play(self, kills: int) -> Files:
        """Nights and their mornings, as many as it takes to kill so many runs; each morning ends undisturbed."""
        files = Files(self.folder / "seen")
        dice = make(self.seed, files)
        with self.serving(files.scenario):
            for _ in range(NIGHTS):
                self._night(kills, dice, files)
                if self.kills == kills:
                    break
                self.vcenter.advance(LATER_S)
                self.later_s += LATER_S
            files.write("ledger", self.vcenter.ledger())
        files.write("runs", self.runs)
        files.write("used", self.used)
        files.write("mornings", self.mornings)
        return files

    @contextmanager
    def serving(self, scenario: Path) -> Iterator[None]:
        """Serve the scenario. Afterwards the simulator had no bug, and no run has written or said the password."""
        with simulator(self.folder, scenario, "--clock", "stepped", environment=self._environment()) as ready:
            self.vcenter = SimClient(ready)
            yield
            assert self.vcenter.bugs() == []
            contents = [path.read_bytes() for path in (self.folder / "state").rglob("*") if path.is_file()]
            assert contents, "there is something to look through"
            assert not any(ready.password.encode() in content for content in contents)
            assert not any(ready.password in run["said"] for run in self.runs)

    def _night(self, kills: int, dice: Random, files: Files) -> None:
        """One night and its morning, half of the missing kills in each; then an undisturbed morning."""
        self._run_killed((kills - self.kills + 1) // 2, ("night", "resume"), dice, files)
        if dice.random() < 0.7:
            self._rotate("resume", files)
        self._run_killed(kills - self.kills, ("day", "resume", "restore"), dice, files)
        for _ in range(MORNINGS):
            if self._rotate("day", files) == 0:
                break
            self.vcenter.advance(LATE_S)
        self._note_morning()

    def _note_morning(self) -> None:
        self.mornings.append({"ledger": len(self.vcenter.ledger()), "runs": len(self.runs)})

    def _run_killed(self, kills: int, commands: Sequence[str], dice: Random, files: Files) -> None:
        """Disturb runs, at most so many, until one has nothing left to do."""
        kills_to_reach, command = self.kills + kills, commands[0]  # there must be something to go on with
        for _ in range(2 * kills):
            if self.runs and dice.random() < 0.3:
                self._befall(dice, files)
            before = self.kills
            code = self._rotate(command, files, dice)
            is_finished = self.kills == before and code == 0
            if self.kills == kills_to_reach or (is_finished and command == commands[0]):
                return
            command = commands[0] if is_finished else dice.choice(commands)

    def _rotate(self, half: str, files: Files, dice: Random | None = None) -> int:
        """The exit code of one process, minus the signal that ended it. With dice it is disturbed."""
        policy = [] if half == "resume" else ["--policy", str(files.policy)]
        disturb = None if dice is None else lambda process: self._disturb(process, dice)
        return self.run(half, ["rotate", half, *policy], disturb)

    def run(
        self, name: str, words: Sequence[str], disturb: Callable[[subprocess.Popen[str]], str] | None = None
    ) -> int:
        """Run `gpuops WORDS` to its end and note it; `disturb` returns the name of the signal that it has sent."""
        command = [sys.executable, "-m", "gpuops", *words, "--yes", "--vcenter", f"sim@{self.folder / 'ready.json'}"]
        with subprocess.Popen(
            command, cwd=self.other or ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8",
        ) as process:  # fmt: skip
            sent = "" if disturb is None else disturb(process)
            try:
                output, _ = process.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                output += "\nIT DID NOT END"
        self.runs.append({"what": name, "signal": sent, "code": process.returncode, "said": output})
        return process.returncode

    def _disturb(self, process: subprocess.Popen[str], dice: Random) -> str:
        """Waits for a moment of the dice and sends a signal of them; its name, empty where it ended before."""
        self.wait_for_writes(process, dice.randint(1, 8), dice.uniform(2, 20), dice.uniform(0, 0.05))
        chosen = dice.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP), (6, 2, 2))[0]
        if process.poll() is not None:
            return ""
        process.send_signal(chosen)
        self.kills += 1
        if chosen is signal.SIGSTOP:
            time.sleep(dice.uniform(0, 0.3))
            process.send_signal(signal.SIGCONT if dice.random() < 0.5 else signal.SIGKILL)
        return chosen.name

    def wait_for_writes(self, process: subprocess.Popen[str], writes: int, seconds: float, extra_s: float) -> None:
        """Wait until the journal was written to so often, or so long has passed, or it has ended."""
        state, began, writes_seen = self.folder / "state", time.monotonic(), 0
        last = _stamps(state)
        while writes_seen < writes and time.monotonic() - began < seconds and process.poll() is None:
            time.sleep(0.002)
            now = _stamps(state)
            writes_seen, last = writes_seen + (now != last), now
        time.sleep(extra_s)

    def _befall(self, dice: Random, files: Files) -> None:
        """From a moment in this run on a desktop has another name, is in another folder, or is worked on."""
        declared = yaml.safe_load(files.scenario.read_text(encoding="utf-8"))["vms"]
        name, host = dice.choice([(vm["name"], vm["on"]) for vm in declared if vm["name"].startswith("vdi-")])
        happening, at_s = RENAMED if host == FREE else dice.choice(HAPPENINGS), dice.uniform(0, 60)
        now = datetime.fromisoformat(self.vcenter.clock()["now"])
        self.vcenter.inject(Rule(Effect.HAPPEN, target=name, happening=happening, at_s=at_s))
        if happening == WORKED_ON:
            self.used.append({"name": name, "from": (now + timedelta(seconds=at_s)).isoformat()})

    def _environment(self) -> dict[str, str]:
        """The environment of a child process of this test, in the minute of this night (`tests/surroundings/child`)."""
        ahead_s = float(os.environ.get("SURROUNDINGS_AHEAD_S", "0")) + self.later_s
        return {
            **(os.environ if self.other is None else running(self.other)),
            "SURROUNDINGS_AHEAD_S": str(ahead_s),
            "GPUOPS_STATE_DIR": str(self.folder / "state"),
        }


def _stamps(state: Path) -> tuple[tuple[str, int, int], ...]:
    """What of the journal's files changes with each write."""
    stamps = []
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        try:
            status = (state / name).stat()
        except OSError:
            continue
        stamps.append((name, status.st_size, status.st_mtime_ns))
    return tuple(stamps)
