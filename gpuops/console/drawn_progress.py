"""Shows the progress of a run on stderr: `DrawnProgress` as a picture on a terminal, `ChangeProgress` as lines.

A thread of rich draws the picture four times a second, so that durations advance while the run waits. Drawing never
ends the run: errors of the terminal are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpuops.clock import passed_s, wall_clock
from gpuops.console import output
from gpuops.model.time_text import format_stopwatch
from gpuops.report.run_progress import RunProgress, progress_lines, start_progress

if TYPE_CHECKING:
    from gpuops.plan.core.plan import Outcome, Report
    from gpuops.plan.core.steps import Step

_WIDEST_BAR: Final = 40


class DrawnProgress:
    """The progress of one run, as it is drawn."""

    def __init__(self) -> None:
        self._progress: RunProgress | None = None
        console = output.rich_console(cast(TextIO, _LossyStream(sys.stderr)))
        self._live = Live(_Picture(lambda: self._progress), console=console, transient=True)

    def begin(self, report: Report) -> None:
        """Show a run that is about to start, or that continues with another plan."""
        with suppress(Exception):
            self._progress = start_progress(report, passed_s(), wall_clock().astimezone(), self._progress)
            self._live.start(refresh=True)

    def sent(self, steps: Sequence[Step]) -> None:
        """Show that exactly these steps are in flight."""
        self._change(lambda progress: progress.with_in_flight(steps, passed_s()))

    def ended(self, outcome: Outcome) -> None:
        """Show that a step has ended."""
        self._change(lambda progress: progress.with_outcome(outcome))

    def stop(self) -> None:
        """Remove the progress from the terminal."""
        with suppress(Exception):
            self._live.stop()

    def _change(self, change: Callable[[RunProgress], RunProgress]) -> None:
        with suppress(Exception):
            if self._progress is not None:
                self._progress = change(self._progress)


class _Picture:
    """Renders the latest progress for rich; nothing before a run has begun."""

    def __init__(self, latest: Callable[[], RunProgress | None]) -> None:
        self._latest = latest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        progress = self._latest()
        with suppress(Exception):
            return _picture(progress, options.max_width) if progress is not None else []
        return []


def _picture(progress: RunProgress, width: int) -> list[RenderableType]:
    """Return the row `desktops back ━━━━━━━ 12/40 4:10` (done, of all, elapsed time), and the lines below it."""
    tally, now_s = progress.shown_tally, passed_s()
    count = f"{tally.completed_steps:>{len(str(tally.total))}}/{tally.total}"
    elapsed = format_stopwatch(now_s - progress.began_s)
    free_width = width - len(f"{tally.label}  {count} {elapsed}")
    row = Table.grid(padding=(0, 1, 0, 0))  # one blank after each cell
    bar_width = max(1, min(_WIDEST_BAR, free_width - 1))
    bar = ProgressBar(total=tally.total, completed=tally.completed_steps, width=bar_width)
    row.add_row(tally.label, bar, count, elapsed)
    return [row, *map(Text, progress_lines(progress, now_s, wall_clock().astimezone(), width))]


class _LossyStream:
    """stderr for rich: characters that its encoding lacks are escaped, and errors of writing are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        with output.ignoring_lost_stderr():
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with output.ignoring_lost_stderr():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ChangeProgress:
    """Prints each line of a change's progress on stderr, and after an interruption how to continue."""

    def __init__(self) -> None:
        self._began = False

    def __call__(self, line: str) -> None:
        self._began = True
        output.progress(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._began:
            output.note_if_cut_off(kind, "interrupted; hosts may be out of service", "gpuops change resume")
