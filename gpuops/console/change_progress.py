"""The progress of a change of hosts, as lines on stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from gpuops.console import output


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
            output.note_if_cut_off(kind, "cut off, hosts may be out of service", "gpuops change resume")
