"""Advice, played: each command that is advised is typed as it stands, and must get somewhere (`aside.py`).

What is advised is every command of ours in a `next:` line, and in whatever is said of what did not end well, but for
those behind "then": these come after what somebody must do first. It gets somewhere when it ends well, changes
something, or says something else than the line it comes from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from gpuops.cli.app import app

HOPS = 3
"""So many pieces of advice are followed, one after the other."""
SAID = re.compile(r"^\s*(?:next:|      for moves of defrag,) (.*)$", re.MULTILINE)
OURS = re.compile(r"(?<!then )\bgpuops ((?:[^\s;,()]+ ?)+)")


@dataclass(frozen=True)
class Ran:
    """A command and what came of it."""

    words: tuple[str, ...]
    exit_code: int
    lines: frozenset[str]
    state: str

    @property
    def advised(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(the advice, the words to type) of each command that is advised as it stands."""
        for line in sorted(self.lines):
            for command in OURS.findall(line) if self._advises(line) else ():
                words = fill_in(command.split(), self.words)
                if words:
                    yield line, words

    def _advises(self, line: str) -> bool:
        """Whatever is said of what did not end well may be typed; elsewhere a command may be an example."""
        return self.exit_code != 0 or SAID.match(line) is not None

    def repeats(self, before: Ran) -> set[str]:
        """What it says again of what went wrong."""
        repeated_lines = before.lines & self.lines
        return {line for line in repeated_lines if line.startswith("error:") or OURS.search(line)}


@dataclass
class Advice:
    """What a command advised, played; `state` is a fingerprint of all that its commands may change."""

    run: Callable[..., Any]
    state: Callable[[], str]

    def ran(self, words: tuple[str, ...], exit_code: int, text: str) -> Ran:
        lines = frozenset(line.strip() for line in text.splitlines() if line.strip())
        return Ran(words, exit_code, lines, self.state())

    def play(self, before: Ran) -> list[str]:
        """What of it leads nowhere."""
        return [bad for advice, words in before.advised for bad in self._followed(before, advice, words)]

    def _followed(self, before: Ran, advice: str, words: tuple[str, ...]) -> Iterator[str]:
        words_seen = {before.words}
        for _ in range(HOPS):
            result = self.run(*words)
            ran = self.ran(words, result.exit_code, f"{result.stdout}\n{result.stderr}")
            same = ran.repeats(before)
            if ran.exit_code and ran.state == before.state and (same or words in words_seen):
                yield f"`gpuops {' '.join(words)}` is advised ({advice!r}), and says the same: {sorted(same)}"
                return
            words_seen.add(words)
            onward = next(iter(ran.advised), None)
            if ran.exit_code == 0 or onward is None:
                return
            before, (advice, words) = ran, onward


def fill_in(advised: list[str], before: tuple[str, ...]) -> tuple[str, ...]:
    """The words to type: the command with its options, without the prose behind it; none where it is not complete."""
    command: Any = typer.main.get_command(app)
    words = list[str]()
    while advised and advised[0] in getattr(command, "commands", ()):
        words.append(advised[0])
        command = command.commands[advised.pop(0)]
    if not words or hasattr(command, "commands"):
        return ()
    takes = {name: option for option in command.params for name in option.opts}
    while advised and advised[0] in takes:
        option = takes[advised[0]]
        words.append(advised.pop(0))
        if not getattr(option, "is_flag", False):
            value = _option_value(words[-1], advised.pop(0) if advised else "", before)
            if not value:
                return ()
            words.append(value)
    if advised[:1] == ["--help"]:
        return (*words, "--help")
    if _lacks(command, words) or (advised and advised[0].startswith("--")):
        return ()
    return (*words, "--yes") if "--yes" in takes and "--yes" not in words else tuple(words)


def _option_value(option: str, word: str, before: tuple[str, ...]) -> str:
    """What is said, or where that is a name for it (FILE, NAME) what the command before had there."""
    if not word.isupper():
        return word
    return before[before.index(option) + 1] if option in before else ""


def _lacks(command: Any, words: list[str]) -> bool:
    options_used = {name for name in words if name.startswith("--")}
    return any(param.required and not options_used & {*param.opts} for param in command.params)


def fingerprint(ledger: int, folder: Path) -> str:
    """Of a simulated vCenter's ledger and of what lies in a home, but for what is written each time."""
    digest = hashlib.sha256(str(ledger).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".sqlite", ".sqlite-wal", ".json"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
