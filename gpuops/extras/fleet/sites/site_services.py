"""Services for several vCenters: each vCenter has its own process, which is restarted when it dies.

Multiprocessing's fork server starts the processes, because the parent has threads by then. Parent and child use one
pipe: the parent sends numbered questions, the child sends answers, news, and lines for stderr. A child whose pipe
closes, because its parent has died, ends as by a signal.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.console import opening, output, signals
from gpuops.console.failure import run_guarded
from gpuops.console.output import Manners
from gpuops.errors import VcenterUnreachable
from gpuops.report.layout import Text
from gpuops.report.sites import SiteFailure

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

AGAIN_S: Final = 5.0
"""How long after the death of a process the next one is started."""
ENDING_S: Final = 5.0
"""How long a stopped process may take to log out of its vCenter."""
SETTLES_S: Final = 1.0
"""A signal for all processes of a service may reach a child before the parent."""
_SERVER: Final = get_context("forkserver")


class SiteAway(VcenterUnreachable):
    """The process of a site gave no answer."""


@dataclass(frozen=True, slots=True)
class _SiteReply:
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class _SiteRefusal:
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class _SiteNews:
    what: Any


@dataclass(frozen=True, slots=True)
class _SiteLine:
    text: str


class SiteTalk:
    """The child's end of the pipe: receives questions, sends answers and news."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = Lock()

    def questions(self) -> Iterator[tuple[int, Any]]:
        """Yield each question with its number; end when the parent has closed the pipe."""
        while True:
            try:
                yield self._pipe.recv()
            except (EOFError, OSError):
                return

    def answer(self, number: int, reply: Any) -> None:
        self._send(_SiteReply(number, reply))

    def refuse(self, number: int, why: str) -> None:
        """Refuse a question: its caller gets SiteAway."""
        self._send(_SiteRefusal(number, why))

    def tell(self, news: Any) -> None:
        """Send news to the parent."""
        self._send(_SiteNews(news))

    def say(self, line: str) -> None:
        """Send a line for stderr."""
        self._send(_SiteLine(line))

    def fail(self, failure: SiteFailure) -> None:
        """Send why this process ends and must not be restarted."""
        self._send(failure)

    def _send(self, message: object) -> None:
        with self._lock:
            self._pipe.send(message)


Work = Callable[..., None]
"""The work of a site's process: a function of a module, called with a SiteTalk and the site's arguments."""


class SiteProcess:
    """The parent's view of one site's process.

    `tell` is called in another thread: with news of the process, and with a SiteFailure if it died (it is restarted) or
    ended for good (`failure`).
    """

    def __init__(
        self, site: str, work: Work, arguments: Sequence[Any], tell: Callable[[Any], None], *, first: bool = True
    ) -> None:
        self.site = site
        self._first = first
        self.failure: SiteFailure | None = None
        """Why it is not restarted; None = it runs or is restarted."""
        self._work, self._arguments, self._told = work, tuple(arguments), tell
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None
        self._lock = Lock()
        self._waiting: dict[int, Future[Any]] = {}
        """The answers that callers of `ask` wait for, by the number of the question."""
        self._number = 0
        """That of the last question."""
        self._closing = Event()
        self.over = Thread(target=self._keep, name=f"site {site}", daemon=True)

    def ask(self, question: Any, timeout_s: float) -> Any:
        """Return the answer. Raises SiteAway if the process has ended, or does not answer in time and is stopped."""
        future: Future[Any] = Future()
        with self._lock:
            if self._pipe is None:
                raise SiteAway(f"{self.site}: its process does not run")
            self._number += 1
            number = self._number
            self._waiting[number] = future
            try:
                self._pipe.send((number, question))
            except OSError as error:
                raise SiteAway(f"{self.site}: its process has ended") from error
        try:
            return future.result(timeout_s)
        except NotInTime:
            self._end()
            raise SiteAway(f"{self.site}: it did not answer within {timeout_s:g} s") from None

    def begin(self) -> None:
        self.over.start()

    def close(self) -> None:
        """Stop the process; `wait_closed` waits for its end."""
        self._closing.set()
        self._end()

    def wait_closed(self, within_s: float) -> None:
        """Wait for the end of the process; kill it after this time."""
        self.over.join(within_s)
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def _end(self) -> None:
        """Terminate the process, and kill it after ENDING_S."""
        if (process := self._process) is None or not process.is_alive():
            return
        process.terminate()
        late = Timer(ENDING_S, process.kill)
        late.daemon = True
        late.start()

    def _keep(self) -> None:
        """Run one process after another, until one ends for good."""
        while not self._closing.is_set():
            mine, theirs = _SERVER.Pipe()
            process = _SERVER.Process(
                target=_serve, args=(self._work, self._arguments, self._first, theirs, output.manners())
            )
            process.daemon = True
            process.start()
            theirs.close()
            with self._lock:
                self._process, self._pipe = process, mine
            if self._closing.is_set():  # `close` was called meanwhile, and did not see the new process
                self._end()
            self.failure = self._listen(mine)
            with self._lock:
                self._pipe = None
                waiting, self._waiting = self._waiting, {}
            mine.close()
            process.join(ENDING_S)
            if process.is_alive():  # two processes must not read the same vCenter
                process.kill()
                process.join()
            for future in waiting.values():
                future.set_exception(SiteAway(f"{self.site}: its process has ended"))
            # a signal for all processes may have ended this one before the parent closes the service: not a failure
            if self._closing.wait(0.0 if self.failure is not None else SETTLES_S):
                return
            failure = self.failure or _death_failure(process)
            _say_failure(self.site, failure)
            self._told(failure)
            if self.failure is not None:
                return
            self._closing.wait(AGAIN_S)

    def _listen(self, pipe: Connection) -> SiteFailure | None:
        """Handle all messages until the process ends; return its final failure, or None if it died."""
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                return None
            match message:
                case _SiteReply(number, value):
                    self._take_waiting(number).set_result(value)
                case _SiteRefusal(number, why):
                    self._take_waiting(number).set_exception(SiteAway(f"{self.site}: {why}"))
                case _SiteNews(what):
                    self._told(what)
                case _SiteLine(text):
                    output.note(f"{self.site}: {text}")
                case SiteFailure():
                    return message
                case _:
                    raise AssertionError(message)

    def _take_waiting(self, number: int) -> Future[Any]:
        with self._lock:
            return self._waiting.pop(number)


@contextmanager
def keep_running(processes: Sequence[SiteProcess], preload: Sequence[str]) -> Iterator[None]:
    """Run the processes inside the block, and stop them at its end. `preload`: modules that each of them needs."""
    _SERVER.set_forkserver_preload([__name__, *preload])
    try:
        for process in processes:
            process.begin()
        yield
    finally:
        for process in processes:
            process.close()
        latest_s = clock.passed_s() + ENDING_S
        for process in processes:
            process.wait_closed(max(0.1, latest_s - clock.passed_s()))


def wait_for_the_end(processes: Sequence[SiteProcess]) -> int:
    """Wait until no process runs; return their common exit code, 5 if they differ."""
    for process in processes:
        while process.over.is_alive():  # a signal is heard between two waits
            process.over.join(1.0)
    codes = {process.failure.exit_code for process in processes if process.failure is not None}
    return codes.pop() if len(codes) == 1 else VcenterUnreachable.exit_code


def _death_failure(process: ForkServerProcess) -> SiteFailure:
    code = process.exitcode or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    message = f"its process ended by {how}, and is restarted"
    return SiteFailure(message, "look at this machine's memory", VcenterUnreachable.exit_code, VcenterUnreachable.code)


def _say_failure(site: str, failure: SiteFailure) -> None:
    output.note(Text(f"error: {site}: {failure.message}", "bold red"))
    if failure.hint:
        output.note(f"next: {failure.hint}")


class _SaidLines(io.TextIOBase):
    """stderr of a site's process: the parent prints each line with the name of the site."""

    encoding = "utf-8"

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._begun = say, ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._say(line)
        return len(text)


def _serve(work: Work, arguments: Sequence[Any], first: bool, pipe: Connection, manners: Manners) -> None:
    """Run the process of a site. It ignores Ctrl-C: the parent then stops all processes.

    `first`: it also reports vCenters in the journal that are not a site any more. `manners`: how the parent prints.
    """
    signals.install()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    talk = SiteTalk(pipe)
    sys.stderr = _SaidLines(talk.say)
    opening.begin_site(is_first=first)
    output.behave(manners)

    def say(message: str, hint: str, exit_code: int, code: str, applied: bool | None) -> int:
        talk.fail(SiteFailure(message, hint, exit_code, code))
        return exit_code

    raise SystemExit(run_guarded(lambda: work(talk, *arguments), say))


def end_this_process() -> None:
    """Send SIGTERM to this process, so that the main thread closes everything."""
    os.kill(os.getpid(), signal.SIGTERM)
