"""One process per vCenter: a copy of this one, which asks its vCenter alone and leaves its answer in a file.

The copy has the command's arguments already: nothing stands on a command line, passwords least of all, and what was
imported before is not imported again. It reads nothing from the terminal, so it cannot ask for a password; what it says
on stderr is said with its site before it.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import IO, TYPE_CHECKING, Final

import typer

from gpuops import clock
from gpuops.cli import opening, output
from gpuops.cli.failure import run_guarded
from gpuops.cli.output import OutputFormat
from gpuops.config.vcenter.sites import ConfiguredSite
from gpuops.errors import GpuopsError, VcenterUnreachable
from gpuops.report.document import kind_of
from gpuops.report.json_text import document_text
from gpuops.report.sites import SiteAnswer, SiteFailure, blocks

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from gpuops.report.document import AnyDocument
    from gpuops.report.layout import Shown

ENDING_S: Final = 5.0
"""So long a process that is told to end may log out of its vCenter."""
_FORK: Final = get_context("fork")


@dataclass(frozen=True, slots=True)
class SiteQuestion:
    """What is asked of one site."""

    site: ConfiguredSite
    ask: Callable[[], object]
    need_document: bool
    """Whether the document is used though text is printed."""
    first: bool
    """Whether it tells of vCenters that are none of the sites, where the journal has such."""


def answers_of(questions: Sequence[SiteQuestion], *, jobs: int, timeout_s: float) -> list[SiteAnswer]:
    """The answers in the order of the questions, at most `jobs` at a time. No process outlives the call.

    One that takes longer than `timeout_s` is ended, and is a failure like a vCenter that was not reached.
    """
    waiting = list(enumerate(questions))[::-1]
    running: dict[int, tuple[int, _SiteProcess]] = {}
    answers: dict[int, SiteAnswer] = {}
    with ExitStack() as files:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, question = waiting.pop()
                    answer, messages = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
                    process = _SiteProcess(question, timeout_s, answer, messages)
                    running[process.sentinel] = number, process
                patience_s = min(process.ends_s for _, process in running.values()) - clock.passed_s()
                ended = set(wait([*running], max(patience_s, 0.0)))
                for sentinel, (number, process) in [*running.items()]:
                    if sentinel in ended:
                        answers[number] = process.answer()
                    elif clock.passed_s() >= process.ends_s:
                        answers[number] = process.cut_off()
                    if number in answers:
                        del running[sentinel]
        finally:
            _end([process for _, process in running.values()])
    return [answers[number] for number in sorted(answers)]


class _SiteProcess:
    """One process, and the two files without a name that it writes: its answer, and what it says on stderr."""

    def __init__(self, question: SiteQuestion, timeout_s: float, answer: IO[bytes], messages: IO[bytes]) -> None:
        self._question = question
        self._timeout_s = timeout_s
        self._answer = answer
        self._said = messages
        # a daemon of multiprocessing's: it is ended with this process, whatever ends that
        self.process: ForkProcess = _FORK.Process(
            target=_answer_in_copy, args=(question, answer, messages), daemon=True
        )
        self.process.start()
        self.ends_s = clock.passed_s() + timeout_s

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def answer(self) -> SiteAnswer:
        """What it left; what it said is passed on."""
        self.process.join()
        self._pass_on()
        self._answer.seek(0)
        try:
            # written by our own copy, into a file that nobody else can open
            loaded = pickle.load(self._answer)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):
            code = self.process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            message = f"its process ended by {how} and left no answer"
            hint = "look at this machine's memory and temporary files (TMPDIR); --jobs 1 needs the least"
            return self._failure_answer(SiteFailure(message, hint, GpuopsError.exit_code, GpuopsError.code))
        assert isinstance(loaded, SiteAnswer)
        return loaded

    def cut_off(self) -> SiteAnswer:
        """Ends it, for it takes too long."""
        _end([self])
        self._pass_on()
        hint = f"--site-timeout gives it longer; gpuops login test --vcenter {self._question.site.name} asks it alone"
        message = f"it did not answer within {self._timeout_s:g} s"
        return self._failure_answer(SiteFailure(message, hint, VcenterUnreachable.exit_code, VcenterUnreachable.code))

    def _failure_answer(self, failure: SiteFailure) -> SiteAnswer:
        return replace(_nothing_yet(self._question.site), exit_code=failure.exit_code, failure=failure)

    def _pass_on(self) -> None:
        self._said.seek(0)
        for line in self._said.read().decode("utf-8", "replace").splitlines():
            output.note(f"{self._question.site.name}: {line}")


def _end(processes: Sequence[_SiteProcess]) -> None:
    """Ends them as a signal would end this one: each may log out, for a moment."""
    for process in processes:
        process.process.terminate()
    latest_s = clock.passed_s() + ENDING_S
    for process in processes:
        process.process.join(max(latest_s - clock.passed_s(), 0.0))
        if process.process.is_alive():
            process.process.kill()
            process.process.join()


def _nothing_yet(site: ConfiguredSite) -> SiteAnswer:
    return SiteAnswer(site.name, 0, clock.wall_clock(), site.zone, tuple(sorted(site.labels.items())))


def _answer_in_copy(question: SiteQuestion, answer: IO[bytes], messages: IO[bytes]) -> None:
    """In the copy: asks, and writes down what came of it."""
    _leave_the_terminal(messages)
    opening.begin_site(first=question.first)
    output.behave(replace(output.manners(), quiet=True))  # what it writes lies aside, and is told of by nobody
    answers: list[SiteAnswer] = []
    failures: list[SiteFailure] = []

    def receive(text: Shown, document: AnyDocument, csv: Callable[[], str] | None) -> None:
        answers.append(_site_answer(question, text, document, csv))

    def say(message: str, hint: str, exit_code: int, code: str, applied: bool | None) -> int:
        failures.append(SiteFailure(message, hint, exit_code, code))
        return exit_code

    output.deliver_to(receive)
    exit_code = run_guarded(lambda: _exit_code(question.ask), say)
    last_answer = answers[-1] if answers else _nothing_yet(question.site)
    failure = failures[-1] if failures else None
    try:
        pickle.dump(replace(last_answer, exit_code=exit_code, failure=failure, answered_at=clock.wall_clock()), answer)
        answer.flush()
    except OSError as error:  # a full disk: who waits finds half an answer, and says so
        raise SystemExit(GpuopsError.exit_code) from error


def _exit_code(ask: Callable[[], object]) -> int:
    """That of a command which is called as a function."""
    try:
        ask()
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


def _site_answer(
    question: SiteQuestion, text: Shown, document: AnyDocument, csv: Callable[[], str] | None
) -> SiteAnswer:
    """Of what a command shows the part that is used."""
    base_answer = _nothing_yet(question.site)
    if output.chosen() is OutputFormat.CSV:
        if csv is None:
            raise output.no_csv()
        return replace(base_answer, csv=csv())
    view = blocks(text) if output.chosen() is OutputFormat.TEXT else ()
    if not (output.chosen().is_document or question.need_document):
        return replace(base_answer, view=view)
    return replace(base_answer, view=view, kind=kind_of(document), json=document_text(document))


def _leave_the_terminal(messages: IO[bytes]) -> None:
    """Nothing is read from it, results go nowhere else than into the answer, and stderr is the file."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.dup2(messages.fileno(), 2)
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
