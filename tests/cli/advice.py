"""Advice, played: each `next:` that a test leaves behind is typed as it stands, and must get somewhere.

What is advised is every command of ours in the line, but for those behind "then": these come after what somebody must
do first. It gets somewhere when it ends well, changes something, or says something else than the line it comes from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
            said = SAID.match(line)
            for found in OURS.findall(said[1]) if said else ():
                words = typed(found.split(), self.words)
                if words:
                    yield said[1] if said else "", words


@dataclass
class Advice:
    """What one test's commands advised last; `state` is a fingerprint of all that they may change."""

    run: Callable[..., Any]
    state: Callable[[], str]
    last: Ran | None = None
    played: list[str] = field(default_factory=list)

    def note(self, words: tuple[str, ...], result: Any) -> Ran:
        text = f"{result.stdout}\n{result.stderr}"
        lines = frozenset(line.strip() for line in text.splitlines() if line.strip())
        self.last = Ran(words, result.exit_code, lines, self.state())
        return self.last

    def play(self) -> list[str]:
        """What of it leads nowhere."""
        if self.last is None or self.last.exit_code == 0 or self.last.state != self.state():
            return []
        return [bad for advice, words in self.last.advised for bad in self._followed(self.last, advice, words)]

    def _followed(self, before: Ran, advice: str, words: tuple[str, ...]) -> Iterator[str]:
        seen = {before.words}
        for _ in range(HOPS):
            self.played.append(" ".join(words))
            ran = self.note(words, self.run(*words))
            same = {line for line in before.lines & ran.lines if line.startswith("error:") or SAID.match(line)}
            if ran.exit_code and ran.state == before.state and (same or words in seen):
                yield f"`gpuops {' '.join(words)}` is advised ({advice}), and says the same: {sorted(same)}"
                return
            seen.add(words)
            onward = next(iter(ran.advised), None)
            if ran.exit_code == 0 or onward is None:
                return
            before, (advice, words) = ran, onward


def typed(advised: list[str], before: tuple[str, ...]) -> tuple[str, ...]:
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
            value = _value(words[-1], advised.pop(0) if advised else "", before)
            if not value:
                return ()
            words.append(value)
    if advised[:1] == ["--help"]:
        return (*words, "--help")
    if _lacks(command, words) or (advised and advised[0].startswith("--")):
        return ()
    return (*words, "--yes") if "--yes" in takes and "--yes" not in words else tuple(words)


def _value(option: str, said: str, before: tuple[str, ...]) -> str:
    """What is said, or where that is a name for it (FILE, NAME) what the command before had there."""
    if not said.isupper():
        return said
    return before[before.index(option) + 1] if option in before else ""


def _lacks(command: Any, words: list[str]) -> bool:
    given = {name for name in words if name.startswith("--")}
    return any(param.required and not given & {*param.opts} for param in command.params)


def fingerprint(ledger: int, folder: Path) -> str:
    """Of a simulated vCenter's ledger and of what lies in a home, but for what is written each time."""
    found = hashlib.sha256(str(ledger).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".sqlite", ".sqlite-wal", ".json"):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()
