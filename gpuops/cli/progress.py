"""Progress: what a run does, on stderr: a bar on a terminal, a line per step elsewhere. stdout is for the result."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpuops.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from gpuops.plan.core.outcome import Outcome, Report


class Progress:
    """Watches one run: told of the plan before its first step, then of each outcome. Leaving its block ends the bar."""

    def __init__(self) -> None:
        self.report: Report | None = None
        """The run underway; None = nothing was begun."""
        self.ended = 0
        self._bar: Bar | None = None

    @property
    def steps(self) -> int:
        return len(self.report.plan.steps) if self.report else 0

    def begin(self, report: Report) -> None:
        self.report, self.ended = report, 0
        if sys.stderr.isatty() and self._bar is None:
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task("", total=self.steps)

    def __call__(self, outcome: Outcome) -> None:
        from rich.text import Text

        from gpuops.report.plan_text import outcome_line

        self.ended += 1
        if self.report is None:
            return
        line = outcome_line(outcome, self.report.before)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.ended, total=self.steps, description=line.plain)
        elif self.steps > 1:
            output.note(Text(f"[{self.ended}/{self.steps}] ", "dim").append(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit) and self.report is not None:
            output.note(f"cut off after {self.ended} of {self.steps} steps; what was begun goes on in vCenter")
            output.note("next: the same command again; for a rotation, gpuops rotate resume")
            output.note("      for moves of defrag, gpuops change resume")


def _bar() -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    return Bar(*columns, console=output.console_for(sys.stderr), transient=True)
