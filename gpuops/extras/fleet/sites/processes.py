"""One process per vCenter: a fork of this one, which reads only its vCenter and writes its answer to a file.

The fork has the command's arguments already: no password appears on a command line, and no module is imported again. It
reads nothing from the terminal, so it cannot ask for a password; its stderr is printed with the name of its site.
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
from gpuops.config.vcenter.sources import ConfiguredSite
from gpuops.console import opening, output
from gpuops.console.failure import run_guarded
from gpuops.console.output import OutputFormat
from gpuops.errors import GpuopsError, VcenterUnreachable
from gpuops.report.document import kind_of
from gpuops.report.json_and_csv import document_text
from gpuops.report.sites import SiteAnswer, SiteFailure, blocks

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from gpuops.report.document import AnyDocument
    from gpuops.report.layout import Shown

ENDING_S: Final = 5.0
"""How long a stopped process may take to log out of its vCenter."""
_FORK: Final = get_context("fork")


@dataclass(frozen=True, slots=True)
class SiteQuestion:
    """The question for one site."""

    site: ConfiguredSite
    ask: Callable[[], object]
    need_document: bool
    """Whether the document is used though text is printed."""
    first: bool
    """Whether it reports vCenters of the journal that are not among the sites."""


def answers_of(questions: Sequence[SiteQuestion], *, jobs: int, timeout_s: float) -> list[SiteAnswer]:
    """Ask each question in its own process, at most `jobs` at a time; return the answers in the questions' order.

    No process outlives the call. A process that takes longer than `timeout_s` is stopped; its answer is a failure as
    for an unreachable vCenter.
    """
    waiting = list(enumerate(questions))[::-1]  # reversed, because `pop` takes the last one
    running: dict[int, tuple[int, _SiteProcess]] = {}  # by sentinel: the place of the question, and its process
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
    """One process, and the two temporary files that it writes: its answer, and its stderr."""

    def __init__(self, question: SiteQuestion, timeout_s: float, answer: IO[bytes], messages: IO[bytes]) -> None:
        self._question = question
        self._timeout_s = timeout_s
        self._answer = answer
        self._said = messages
        # a daemon of multiprocessing: it ends with this process
        self.process: ForkProcess = _FORK.Process(
            target=_answer_in_copy, args=(question, answer, messages), daemon=True
        )
        self.process.start()
        self.ends_s = clock.passed_s() + timeout_s

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def answer(self) -> SiteAnswer:
        """Return the answer of the process, and print its stderr."""
        self.process.join()
        self._pass_on()
        self._answer.seek(0)
        try:
            # written by our own fork, into a file that no other process can open
            loaded = pickle.load(self._answer)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):
            code = self.process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            message = f"its process ended by {how} and left no answer"
            hint = "check this machine's free memory and the space in TMPDIR; --parallel 1 needs the least memory"
            return self._failure_answer(SiteFailure(message, hint, GpuopsError.exit_code, GpuopsError.code))
        assert isinstance(loaded, SiteAnswer)
        return loaded

    def cut_off(self) -> SiteAnswer:
        """Stop the process after the timeout, and return the failure."""
        _end([self])
        self._pass_on()
        hint = f"--site-timeout gives it longer; gpuops login test --vcenter {self._question.site.name} tests it"
        message = f"it did not answer within {self._timeout_s:g} s"
        return self._failure_answer(SiteFailure(message, hint, VcenterUnreachable.exit_code, VcenterUnreachable.code))

    def _failure_answer(self, failure: SiteFailure) -> SiteAnswer:
        return replace(_nothing_yet(self._question.site), exit_code=failure.exit_code, failure=failure)

    def _pass_on(self) -> None:
        self._said.seek(0)
        for line in self._said.read().decode("utf-8", "replace").splitlines():
            output.note(f"{self._question.site.name}: {line}")


def _end(processes: Sequence[_SiteProcess]) -> None:
    """Stop the processes by a signal; each may log out within ENDING_S."""
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
    """Run the command in the fork: write its pickled SiteAnswer to `answer`, and its stderr to `messages`.

    Raises SystemExit if the answer cannot be written.
    """
    _leave_the_terminal(messages)
    opening.begin_site(is_first=question.first)
    output.behave(replace(output.manners(), quiet=True))  # it writes temporary files, which are not reported
    answers: list[SiteAnswer] = []
    failures: list[SiteFailure] = []

    def receive(text: Shown, document: AnyDocument, csv: Callable[[], str] | None) -> None:
        answers.append(_site_answer(question, text, document, csv))

    def say(message: str, hint: str, exit_code: int, code: str, applied: bool | None) -> int:
        failures.append(SiteFailure(message, hint, exit_code, code))
        return exit_code

    output.deliver_to(receive)
    exit_code = run_guarded(lambda: _exit_code(question.ask), say)
    # what the command showed last counts; without any output (an error), the answer is empty
    last_answer = answers[-1] if answers else _nothing_yet(question.site)
    failure = failures[-1] if failures else None
    try:
        pickle.dump(replace(last_answer, exit_code=exit_code, failure=failure, answered_at=clock.wall_clock()), answer)
        answer.flush()
    except OSError as error:  # a full disk: the parent reports an incomplete answer
        raise SystemExit(GpuopsError.exit_code) from error


def _exit_code(ask: Callable[[], object]) -> int:
    """Return the exit code of a command that is called as a function."""
    try:
        ask()
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


def _site_answer(
    question: SiteQuestion, text: Shown, document: AnyDocument, csv: Callable[[], str] | None
) -> SiteAnswer:
    """Return an answer with the part of a command's output that is printed or merged: CSV, text, or the document."""
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
    """Detach from the terminal: stdin and stdout are /dev/null, stderr is the file."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.dup2(messages.fileno(), 2)
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
