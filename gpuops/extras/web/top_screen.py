"""The live view of `gpuops top`: one thread reads vCenter, the main thread draws and handles keys.

The view uses the terminal's alternate screen, so the text on the terminal is back when the view ends, even by an error.
If vCenter does not answer, a line above the rows of the last read reports it, and vCenter is read again.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.text import Text

from gpuops.clock import wall_clock
from gpuops.console import output
from gpuops.errors import LoginRefused, NotConnected
from gpuops.extras.web.top import Top, heading_lines
from gpuops.extras.web.top_table import rows_shown, screen_lines
from gpuops.extras.web.top_view import TopView, view_after_key
from gpuops.model.time_text import format_clock_second
from gpuops.report.layout import Line

KEY_WAIT_S: Final = 0.25
"""The longest time from a read of vCenter until its rows are drawn."""
ENDING_S: Final = 5.0
"""How long the end of the view waits for a read that is under way."""

KEYS: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "enter",
    b"\x1bOC": "enter",
    b"\x1b[D": "escape",
    b"\x1bOD": "escape",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "back",
    b"\x08": "back",
}
"""What terminals send for a key (xterm control sequences, in both cursor key modes)."""


class TopScreen:
    """One live view, from its first read to `q`."""

    def __init__(self, read: Callable[[], Top], every_s: float, view: TopView, top: Top) -> None:
        self._read = read
        self._every_s = every_s
        self._view = view
        self._top = top
        self._trouble = ""
        self._ended_by: BaseException | None = None
        self._lock = Lock()
        self._changed = Event()
        self._stop = Event()
        self._console = output.rich_console(sys.stdout)

    def run(self) -> None:
        """Run until `q`, a signal, or an error that a retry cannot fix, which is raised."""
        reader_thread = Thread(target=self._read_repeatedly, name="look", daemon=True)
        with _unbuffered_keys(), Live(self, console=self._console, screen=True, auto_refresh=False) as live:
            reader_thread.start()
            try:
                self._handle_keys(live)
            finally:
                self._stop.set()
        reader_thread.join(ENDING_S)
        if self._ended_by is not None:
            raise self._ended_by

    def _handle_keys(self, live: Live) -> None:
        """Handle keys, and draw after each change, until `q` or until the other thread has ended with an error."""
        size = self._console.size
        while self._ended_by is None:
            for key in _keys(KEY_WAIT_S):
                with self._lock:
                    view = view_after_key(self._view, key, self._top, self._page_size())
                    if view is None:
                        return
                    self._view = view
                self._changed.set()
            if self._changed.is_set() or self._console.size != size:
                self._changed.clear()
                size = self._console.size
                live.refresh()

    def _page_size(self) -> int:
        return rows_shown(self._console.size.height, len(heading_lines(self._top)) + bool(self._trouble))

    def _read_repeatedly(self) -> None:
        """Read vCenter every `_every_s`. While it is away, keep the last state; any other error ends the view."""
        while not self._stop.wait(self._every_s):
            try:
                top, trouble = self._read(), ""
            except Exception as error:  # any error is raised in the main thread, which prints it
                # LoginRefused is a NotConnected, but repeated logins could lock the account
                if isinstance(error, LoginRefused) or not isinstance(error, NotConnected):
                    self._ended_by = error
                    return
                now = wall_clock()
                since = f"since {format_clock_second(now)} {now.tzname()} vCenter is away: {error.message}"
                # keep the first error of an outage: its text has the time when the outage began
                top, trouble = self._top, self._trouble or since
            with self._lock:
                self._top, self._trouble = top, trouble
            self._changed.set()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        with self._lock:
            lines = list(screen_lines(self._top, self._view, options.max_width, options.size.height, self._trouble))
        yield Text("\n").join(map(_rich_text, lines))


def _rich_text(line: Line) -> Text:
    text = Text(no_wrap=True, overflow="crop", end="")
    for part, style in line:
        text.append(part, style)
    return text


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Read keys one by one, without echo, inside the block; Ctrl-C stays a signal. Restore the terminal at the end."""
    saved_settings: list[Any] = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setcbreak(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, saved_settings)


def _keys(wait_s: float) -> Iterator[str]:
    """Yield the names of the keys that were pressed within this time; `q` if the terminal is closed."""
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], wait_s)[0]:
        return
    received = os.read(fd, 1024)
    if not received:
        yield "q"
    yield from keys_of(received)


def keys_of(received: bytes) -> Iterator[str]:
    """Yield the names of the keys that a terminal received.

    >>> list(keys_of(b"s\\x1b[Bq"))
    ['s', 'down', 'q']
    """
    while received:
        key_code = next((code for code in sorted(KEYS, key=len, reverse=True) if received.startswith(code)), None)
        # ESC before `[` or `O` is not the Escape key: it begins the sequence of another key
        if key_code is not None and not (key_code == b"\x1b" and len(received) > 1 and received[1:2] in b"[O"):
            yield KEYS[key_code]
            received = received[len(key_code) :]
        elif received.startswith(b"\x1b"):  # the sequence of a key without a meaning here
            # it ends with a byte from @ to ~ (ECMA-48)
            end = next((at for at in range(2, len(received)) if 0x40 <= received[at] <= 0x7E), len(received) - 1)
            received = received[end + 1 :]
        else:
            length = _utf8_length(received[0])
            yield from received[:length].decode("utf-8", "ignore")
            received = received[length:]


def _utf8_length(first_byte: int) -> int:
    """Return how many bytes the UTF-8 sequence of a character has."""
    return 1 if first_byte < 0xC0 else 2 if first_byte < 0xE0 else 3 if first_byte < 0xF0 else 4
