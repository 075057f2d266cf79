"""Man pages: one of section 1 for every command, made from its own help, one of section 7 for every page of the manual.

python -m gpuops.cli.manpages DIRECTORY     writes them into man1 and man7 there: `man -M DIRECTORY gpuops-attach`

Nothing in them is written twice, and nothing tells when they were made: the same sources give the same files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpuops import __version__

_SHAPES: Final = (
    (re.compile(r"`([^`]+)`"), r"\\fB\1\\fR"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\\fB\1\\fR"),
    (re.compile(r"\[([^\]]+)\]\([^)]+\)"), r"\1"),
)
"""What of a line of Markdown has a shape of its own on a page: code and bold as bold, a link as its words."""


def pages(root: Any, manual: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Path and text of every man page: of the commands below the root, and of the manual's topics by name."""
    for words, context in _contexts(root, ("gpuops",), None):
        name = "-".join(words)
        yield f"man1/{name}.1", _command(words, context)
    for topic, text in manual.items():
        yield f"man7/gpuops-{topic}.7", _topic(topic, text)


def write(directory: Path) -> int:
    """Writes all pages below the directory, and says how many there are."""
    from typer.main import get_command

    from gpuops.cli.app import app
    from gpuops.cli.first_steps import help

    count = 0
    for path, text in pages(get_command(app), help.pages()):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        count += 1
    return count


def _contexts(command: Any, words: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with the words that call it, those of groups after the group itself."""
    context = command.context_class(command, info_name=words[-1], parent=parent)
    yield words, context
    if commands := getattr(command, "commands", None):
        for name in commands:
            yield from _contexts(commands[name], (*words, name), context)


def _command(words: tuple[str, ...], context: Any) -> str:
    command, name = context.command, "-".join(words)
    first, *rest = re.split(r"\n\n", (command.help or "").strip())
    told = " ".join(first.split())
    lines = [*_head(name, 1), f"{_text(name)} \\- {_text(told.rstrip('.'))}", ".SH SYNOPSIS"]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [f"\\fB{_text(' '.join(words))}\\fR {_text(usage)}", ".SH DESCRIPTION", _line(told)]
    for paragraph in rest:
        kept = paragraph.startswith("\b")
        lines += (
            _verbatim(paragraph.lstrip("\b\n").splitlines()) if kept else [".PP", _line(" ".join(paragraph.split()))]
        )
    lines.append(".SH OPTIONS")
    for names, told in filter(None, (parameter.get_help_record(context) for parameter in command.get_params(context))):
        lines += [".TP", f"\\fB{_text(names)}\\fR", _line(told) or "\\&"]
    if commands := getattr(command, "commands", None):
        lines += [".SH COMMANDS", *(f".br\n\\fB{_text('-'.join((*words, each)))}\\fR(1)" for each in commands)]
    lines += [".SH SEE ALSO", "\\fBgpuops\\fR(1), \\fBgpuops\\-commands\\fR(7), \\fBgpuops\\-exit\\-codes\\fR(7)"]
    return "\n".join(lines) + "\n"


def _topic(topic: str, text: str) -> str:
    title, _, body = text.partition("\n")
    name = f"gpuops-{topic}"
    lines = [*_head(name, 7), f"{_text(name)} \\- {_text(title.removeprefix('# '))}", ".SH DESCRIPTION"]
    kept: list[str] | None = None
    for line in body.splitlines():
        if line.lstrip().startswith("```"):
            lines += _verbatim(kept) if kept is not None else []
            kept = [] if kept is None else None
        elif kept is not None:
            kept.append(line)
        elif not line.startswith(("<!--", "|--")):
            lines.append(_shaped(line))
    return "\n".join(lines) + "\n"


def _shaped(line: str) -> str:
    """A line of Markdown outside of examples: a heading, an item, a row of a table, or text."""
    if line.startswith("## "):
        return f".SH {_line(line[3:].upper())}"
    if item := re.match(r"(?:- |\d+\. )(.*)", line):
        return f".IP \\(bu 2\n{_line(item[1])}"
    if line.startswith("|"):
        first, *others = (cell.strip() for cell in line.strip("| ").split(" | "))
        return f".TP\n{_line(first) or chr(92) + '&'}\n{_line(' - '.join(filter(None, others))) or chr(92) + '&'}"
    return _line(line) if line.strip() else ".PP"


def _head(name: str, section: int) -> list[str]:
    return [f'.TH {_text(name.upper())} {section} "" "gpuops {__version__}" "gpuops"', ".SH NAME"]


def _verbatim(lines: list[str]) -> list[str]:
    return [".PP", ".RS 2", ".nf", *(_guarded(_text(line)) for line in lines), ".fi", ".RE"]


def _line(text: str) -> str:
    """A line with its shapes, none of it taken for a request of roff."""
    shaped = _text(text.strip())
    for shape, as_roff in _SHAPES:
        shaped = shape.sub(as_roff, shaped)
    return _guarded(shaped)


def _guarded(text: str) -> str:
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: say where the man pages shall lie\nnext: python -m gpuops.cli.manpages DIRECTORY")
    sys.stdout.write(f"{write(Path(sys.argv[1]))} man pages in {sys.argv[1]}\n")
