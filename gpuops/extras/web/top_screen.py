"""The live view of `gpuops top`: one thread looks at vCenter, the main one draws and takes keys.

The terminal's own screen is left as it was: the view has a screen of its own, which goes when the view ends, whatever
ends it. A vCenter that is away is said above the rows of the last look, and is asked again.
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
from gpuops.extras.web.top_table import picture, rows_shown
from gpuops.extras.web.top_view import TopView, view_after_key
from gpuops.model.time_text import format_clock_second
from gpuops.report.layout import Line

KEY_WAIT_S: Final = 0.25
"""How long after a look its rows are drawn, at the latest."""
ENDING_S: Final = 5.0
"""How long a look that is under way is waited for at the end."""

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
    """One live view, from its first look to `q`."""

    def __init__(self, look: Callable[[], Top], every_s: float, view: TopView, top: Top) -> None:
        self._look = look
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
        looking = Thread(target=self._look_on, name="look", daemon=True)
        with _keys_at_once(), Live(self, console=self._console, screen=True, auto_refresh=False) as live:
            looking.start()
            try:
                self._take_keys(live)
            finally:
                self._stop.set()
        looking.join(ENDING_S)
        if self._ended_by is not None:
            raise self._ended_by

    def _take_keys(self, live: Live) -> None:
        """Handle keys, and draw after each change, until `q` or until the other thread has ended with an error."""
        size = self._console.size
        while self._ended_by is None:
            for key in _keys(KEY_WAIT_S):
                with self._lock:
                    view = view_after_key(self._view, key, self._top, self._page())
                    if view is None:
                        return
                    self._view = view
                self._changed.set()
            if self._changed.is_set() or self._console.size != size:
                self._changed.clear()
                size = self._console.size
                live.refresh()

    def _page(self) -> int:
        return rows_shown(self._console.size.height, len(heading_lines(self._top)) + bool(self._trouble))

    def _look_on(self) -> None:
        """Read vCenter every `_every_s`. While it is away, keep the last state; any other error ends the view."""
        while not self._stop.wait(self._every_s):
            try:
                top, trouble = self._look(), ""
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
            drawn = list(picture(self._top, self._view, options.max_width, options.size.height, self._trouble))
        yield Text("\n").join(map(_rich_text, drawn))


def _rich_text(line: Line) -> Text:
    text = Text(no_wrap=True, overflow="crop", end="")
    for part, style in line:
        text.append(part, style)
    return text


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Read keys one by one, without echo, inside the block; Ctrl-C stays a signal. Restore the terminal at the end."""
    before: list[Any] = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setcbreak(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


def _keys(wait_s: float) -> Iterator[str]:
    """Yield the names of the keys that were pressed within this time; `q` if the terminal is closed."""
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], wait_s)[0]:
        return
    sent = os.read(fd, 1024)
    if not sent:
        yield "q"
    yield from keys_of(sent)


def keys_of(sent: bytes) -> Iterator[str]:
    """Yield the names of the keys that a terminal sent.

    >>> list(keys_of(b"s\\x1b[Bq"))
    ['s', 'down', 'q']
    """
    while sent:
        key_code = next((code for code in sorted(KEYS, key=len, reverse=True) if sent.startswith(code)), None)
        # ESC before `[` or `O` is not the Escape key: it begins the sequence of another key
        if key_code is not None and not (key_code == b"\x1b" and len(sent) > 1 and sent[1:2] in b"[O"):
            yield KEYS[key_code]
            sent = sent[len(key_code) :]
        elif sent.startswith(b"\x1b"):  # the sequence of a key without a meaning here
            # it ends with a byte from @ to ~ (ECMA-48)
            end = next((at for at in range(2, len(sent)) if 0x40 <= sent[at] <= 0x7E), len(sent) - 1)
            sent = sent[end + 1 :]
        else:
            length = _utf8_length(sent[0])
            yield from sent[:length].decode("utf-8", "ignore")
            sent = sent[length:]


def _utf8_length(first: int) -> int:
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
