"""Play each advice in a copy of the process, of its simulated vCenter and of its state on disk.

So the advice is played at the moment when it is printed, with the faults of that moment, and the test itself goes on
unaffected.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import select
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import machine_time, passed_s, set_ahead
from gpuops.console.output import print_text
from gpuops.errors import GpuopsError
from gpuops.plan.core.abandonment import Abandonment
from gpuops.plan.core.plan import Report
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.report.hosts.change_view import abandonment_text, change_text
from gpuops.report.plan_text import report_text
from gpuops.sim.server import SimServer
from gpuops.sim.wire import certificates, sim_client
from tests.cli.played_advice import Advice, Ran, fingerprint

Answer = TypeVar("Answer")
PATIENCE_S: Final = 80.0
"""For all that one command advised, on a machine that others use too; less than a test's time, so that it can tell."""
STACKS_AFTER_S: Final = 70.0
"""When a copy that does not end writes down where it is."""
ENDING_S: Final = 0.1
"""For the threads of the simulated vCenter whose clients are gone; a thread whose client stays connected sleeps."""
OWN_WORLD: Final = "sim:"
"""A target that is simulated within the command; what it does is gone when it ends."""


@dataclass
class Aside:
    """Plays what is advised by those who work on `server`, or each on a world of its own (None).

    `kept` is the folder with their state, which `variable` names; `now` their clock, if it is not that of the machine.
    """

    server: SimServer | None
    kept: Path
    variable: str = "HOME"
    now: Callable[[], datetime] | None = None
    wrong: list[str] = field(default_factory=list)
    """What led nowhere, of all that was played."""
    played: int = 0

    def advised(self, words: tuple[str, ...], exit_code: int, text: str) -> None:
        """A command ended so, and said so."""
        target = words[words.index("--vcenter") + 1] if "--vcenter" in words[:-1] else ""
        if self.server is None and not target.startswith(OWN_WORLD):
            return
        ran = self._advice(lambda *_: None, self.kept).ran(words, exit_code, text)
        if any(ran.advised):
            self.played += 1
            self.wrong += self._copied(ran, target)

    def of(self, words: tuple[str, ...], act: Callable[[], Answer]) -> Answer:
        """What `act` returns, as the command of these words would print it; or the error that it raises."""
        try:
            answer = act()
        except GpuopsError as error:
            self.advised(words, error.exit_code, f"error: {error.message}\nnext: {error.hint}")
            raise
        self.advised(words, getattr(answer, "exit_code", 0), _text(answer))
        return answer

    def _advice(self, run: Callable[..., Any], state_dir: Path) -> Advice:
        world = self.server.world if self.server else None
        return Advice(run, lambda: fingerprint(len(world.ledger) if world else 0, state_dir))

    def _copied(self, ran: Ran, target: str) -> list[str]:
        place = self.kept.with_name(f"{self.kept.name}-aside-{self.played}")
        place.mkdir()
        answer_file = place / "told.json"
        with self._still():
            pid = os.fork()
        if pid == 0:
            self._child(ran, place, answer_file, target)
        _wait(pid)
        if answer_file.exists():
            objections = json.loads(answer_file.read_text(encoding="utf-8"))
        else:
            stacks = _stacks(place)
            where = stacks.read_text(encoding="utf-8") if stacks.exists() else "it did not begin"
            objections = [f"did not end: {[*ran.advised]}\n{where}"]
        shutil.rmtree(place)
        return [str(objection) for objection in objections]

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Nothing of the world is half done in the copy, and no lock is held there by a thread that was not copied.

        The lock of the world keeps the first; for the second the threads that serve connections end before: one that
        is just closing its connection may hold a lock of OpenSSL or of the interpreter, which the copy waits for in
        vain.
        """
        if self.server is None:
            yield
            return
        latest_s = passed_s() + ENDING_S
        for thread in threading.enumerate():
            if "process_request" in thread.name:
                thread.join(max(0.0, latest_s - passed_s()))
        with self.server.world.lock:
            yield

    def _child(self, ran: Ran, place: Path, answer_file: Path, target: str) -> None:
        try:
            os.setsid()
            stacks = _stacks(place).open("w", encoding="utf-8")
            faulthandler.dump_traceback_later(STACKS_AFTER_S, file=stacks)
            shutil.copytree(self.kept, place / "kept")
            for name in [name for name in os.environ if name.startswith(("GPUOPS_", "XDG_"))]:
                del os.environ[name]
            os.environ |= {"HOME": str(place), "GPUOPS_SIM_CLOCK": "stepped", self.variable: str(place / "kept")}
            if self.now is not None:
                set_ahead(self.now() - machine_time())
            if self.server is not None:
                certificate_files = certificates.create(place)
                served = SimServer(
                    self.server.world, server_certificates=certificate_files
                )  # the threads of the other were not copied
                sim_client.write(place / "ready.json", sim_client.of(served))
                target = f"sim@{place / 'ready.json'}"

            def run(*words: str) -> Any:
                target_options = [] if words[0] == "help" or words[-1] == "--help" else ["--vcenter", target]
                return CliRunner().invoke(app, [*words, *target_options])

            objections = self._advice(run, place / "kept").play(ran)
        except BaseException:
            objections = [traceback.format_exc()]
        finally:
            answer_file.with_suffix(".part").write_text(json.dumps(objections), encoding="utf-8")
            answer_file.with_suffix(".part").rename(answer_file)
            os._exit(0)


def _text(answer: object) -> str:
    """As it is printed; empty for objects that are never printed."""
    text: Any = ""
    match answer:
        case ChangeReport():
            text = change_text(answer)
        case Report():
            text = report_text(answer)
        case Abandonment():
            text = abandonment_text(answer)
        case _:
            pass
    stream = io.StringIO()
    print_text(text, stream)
    return stream.getvalue()


def _stacks(place: Path) -> Path:
    """What the threads of a copy that does not end were doing."""
    return place / "stacks.txt"


def _wait(pid: int) -> None:
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], PATIENCE_S)[0]:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os.close(ended)
    os.waitpid(pid, 0)
