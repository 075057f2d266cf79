"""The kill loop: real `gpuops rotate` processes against a simulated vCenter in a process of its own, over TLS, killed.

A seed gives the world, and before each run its command, its signal and its moment: after so many writes to the journal,
or after so many seconds. Each night ends with a morning that nobody disturbs, and nights go on until enough runs were
killed; what was seen lies in files that `judge.py` reads.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from tests.kills.world import FREE, Files, make
from tests.renamed import running
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
READY_S, RUN_S = 90.0, 120.0
LATE_S: Final = 700.0
"""After so long what the last killed run has sent is not waited for any more."""
MORNINGS: Final = 4
NIGHTS: Final = 8
"""At the most, in one world."""
LATER_S: Final = 60.0
"""So much later each next night begins: a night is named by its minute, and one that has had its morning is over."""
WORKED_ON, RENAMED = "vm.used", "vm.renamed"
HAPPENINGS: Final = (RENAMED, "vm.refiled", WORKED_ON)
"""What somebody else does to a desktop meanwhile, for good; on the host that stays free it is renamed at the most."""


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

    def play(self, kills: int) -> Files:
        """Nights and their mornings, as many as it takes to kill so many runs; each morning ends undisturbed."""
        files = Files(self.folder / "seen")
        dice = make(self.seed, files)
        with self._served(files.scenario) as ready:
            for _ in range(NIGHTS):
                self._night(kills, dice, files, ready)
                if self.kills == kills:
                    break
                self._ask(ready, "POST", "clock", {"advance_s": LATER_S})
                self.later_s += LATER_S
            files.ledger.write_text(json.dumps(self._ledger(ready)), encoding="utf-8")
            assert self._ask(ready, "GET", "bugs")["bugs"] == []
        for path, seen in ((files.runs, self.runs), (files.used, self.used), (files.mornings, self.mornings)):
            path.write_text(json.dumps(seen), encoding="utf-8")
        return files

    def _night(self, kills: int, dice: Random, files: Files, ready: dict[str, Any]) -> None:
        """One night and its morning, half of the missing kills in each; then a morning that nobody disturbs."""
        self._killed((kills - self.kills + 1) // 2, ("night", "resume"), dice, files, ready)
        if dice.random() < 0.7:
            self._run(("resume",), files, ready)
        self._killed(kills - self.kills, ("day", "resume", "restore"), dice, files, ready)
        for _ in range(MORNINGS):
            if self._run(("day",), files, ready) == 0:
                break
            self._ask(ready, "POST", "clock", {"advance_s": LATE_S})
        self.mornings.append({"ledger": len(self._ledger(ready)), "runs": len(self.runs)})

    def _killed(self, kills: int, commands: Sequence[str], dice: Random, files: Files, ready: dict[str, Any]) -> None:
        """Runs that are disturbed, so many at the most, until one has nothing left to do."""
        wanted, command = self.kills + kills, commands[0]  # there must be something to go on with
        for _ in range(2 * kills):
            if self.runs and dice.random() < 0.3:
                self._befall(dice, files, ready)
            before = self.kills
            code = self._run((command,), files, ready, dice)
            done = self.kills == before and code == 0
            if self.kills == wanted or (done and command == commands[0]):
                return
            command = commands[0] if done else dice.choice(commands)

    def _run(self, words: Sequence[str], files: Files, ready: dict[str, Any], dice: Random | None = None) -> int:
        """The exit code of one process, minus the signal that ended it. With dice it is disturbed."""
        policy = [] if words[0] == "resume" else ["--policy", str(files.policy)]
        command = [
            sys.executable,
            "-m",
            "gpuops",
            "rotate",
            *words,
            *policy,
            "--yes",
            "--vcenter",
            f"sim@{self._ready}",
        ]
        with subprocess.Popen(
            command, cwd=self.other or ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8",
        ) as process:  # fmt: skip
            sent = self._disturb(process, dice) if dice is not None else ""
            try:
                said, _ = process.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                said += "\nIT DID NOT END"
        self.runs.append({"what": words[0], "signal": sent, "code": process.returncode, "said": said})
        return process.returncode

    def _disturb(self, process: subprocess.Popen[str], dice: Random) -> str:
        """Waits for a moment of the dice and sends a signal of them; its name, empty where it ended before."""
        self._until(process, writes=dice.randint(1, 8), seconds=dice.uniform(2, 20), extra_s=dice.uniform(0, 0.05))
        chosen = dice.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP), (6, 2, 2))[0]
        if process.poll() is not None:
            return ""
        process.send_signal(chosen)
        self.kills += 1
        if chosen is signal.SIGSTOP:
            time.sleep(dice.uniform(0, 0.3))
            process.send_signal(signal.SIGCONT if dice.random() < 0.5 else signal.SIGKILL)
        return chosen.name

    def _until(self, process: subprocess.Popen[str], *, writes: int, seconds: float, extra_s: float) -> None:
        """Until the journal was written to so often, or so long has passed, or it has ended."""
        state, began, seen = self.folder / "state", time.monotonic(), 0
        last = _stamps(state)
        while seen < writes and time.monotonic() - began < seconds and process.poll() is None:
            time.sleep(0.002)
            now = _stamps(state)
            seen, last = seen + (now != last), now
        time.sleep(extra_s)

    def _befall(self, dice: Random, files: Files, ready: dict[str, Any]) -> None:
        """From a moment in this run on a desktop has another name, is in another folder, or is worked on."""
        evening = json.loads(files.evening.read_text(encoding="utf-8"))
        name, host = dice.choice([(vm["name"], vm["on"]) for vm in evening if vm["name"].startswith("vdi-")])
        happening, at_s = RENAMED if host == FREE else dice.choice(HAPPENINGS), dice.uniform(0, 60)
        now = datetime.fromisoformat(self._ask(ready, "GET", "clock")["now"])
        self._ask(ready, "POST", "inject", {"effect": "happen", "target": name, "happening": happening, "at_s": at_s})
        if happening == WORKED_ON:
            self.used.append({"name": name, "from": (now + timedelta(seconds=at_s)).isoformat()})

    # the simulated vCenter

    @property
    def _ready(self) -> Path:
        return self.folder / "ready.json"

    @contextmanager
    def _served(self, scenario: Path) -> Iterator[dict[str, Any]]:
        command = [sys.executable, "-m", "gpuops", "sim", "serve", "--clock", "stepped", "--scenario", str(scenario)]
        command += ["--ready-file", str(self._ready)]
        with (self.folder / "sim.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_until(lambda: self._ready.exists() or process.poll() is not None, READY_S)
            assert process.poll() is None, (self.folder / "sim.log").read_text(encoding="utf-8")
            yield json.loads(self._ready.read_text(encoding="utf-8"))
        finally:
            process.terminate()
            process.wait(timeout=READY_S)

    def _ledger(self, ready: dict[str, Any]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._ask(ready, "GET", "ledger")["entries"]
        return entries

    def _environment(self) -> dict[str, str]:
        """The environment of a child process of this test, in the minute of this night (`tests/surroundings/child`)."""
        ahead_s = float(os.environ.get("SURROUNDINGS_AHEAD_S", "0")) + self.later_s
        return {
            **(os.environ if self.other is None else running(self.other)),
            "SURROUNDINGS_AHEAD_S": str(ahead_s),
            "GPUOPS_STATE_DIR": str(self.folder / "state"),
        }

    def _ask(self, ready: dict[str, Any], verb: str, what: str, body: Any = None) -> Any:
        """What the simulator's own door answers."""
        url = urlsplit(ready["url"])
        context = ssl.create_default_context(cafile=ready["ca_file"])
        connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=60, context=context)
        login = base64.b64encode(f"{ready['username']}:{ready['password']}".encode()).decode()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(verb, f"/gpuops-sim/{what}", text, {"Authorization": f"Basic {login}"})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        assert reply.status == 200, content
        return json.loads(content)


def _stamps(state: Path) -> tuple[tuple[str, int, int], ...]:
    """What of the journal's files changes with each write."""
    found = []
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        try:
            known = (state / name).stat()
        except OSError:
            continue
        found.append((name, known.st_size, known.st_mtime_ns))
    return tuple(found)
