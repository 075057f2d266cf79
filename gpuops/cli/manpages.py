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

from typer.main import get_command

from gpuops import __version__
from gpuops.cli.first_steps import help
from gpuops.cli.first_steps.help import option_table

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
    for topic, text in {**manual, "options": option_table(root)}.items():
        yield f"man7/gpuops-{topic}.7", _topic(topic, text)


def write(directory: Path) -> int:
    """Write all pages below the directory, and return their number."""

    from gpuops.cli.app import app

    count = 0
    for path, text in pages(get_command(app), help.pages()):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        count += 1
    return count


def _contexts(command: Any, words: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command with the words that call it, those of groups after the group itself."""
    context = command.context_class(command, info_name=words[-1], parent=parent)
    yield words, context
    if commands := getattr(command, "commands", None):
        for name in commands:
            yield from _contexts(commands[name], (*words, name), context)


def _command(words: tuple[str, ...], context: Any) -> str:
    """Return the man page of a command as troff."""
    command, name = context.command, "-".join(words)
    first, *paragraphs = re.split(r"\n\n", (command.help or "").strip())
    description = " ".join(first.split())
    lines = [*_head(name, 1), f"{_text(name)} \\- {_text(description.rstrip('.'))}", ".SH SYNOPSIS"]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [f"\\fB{_text(' '.join(words))}\\fR {_text(usage)}", ".SH DESCRIPTION", _line(description)]
    for paragraph in paragraphs:
        is_example = paragraph.startswith("\b")
        lines += (
            _verbatim(paragraph.lstrip("\b\n").splitlines())
            if is_example
            else [".PP", _line(" ".join(paragraph.split()))]
        )
    if command.epilog:
        lines += _verbatim(command.epilog.lstrip("\b\n").splitlines())
    lines.append(".SH OPTIONS")
    for names, description in filter(
        None, (parameter.get_help_record(context) for parameter in command.get_params(context))
    ):
        lines += [".TP", f"\\fB{_text(names)}\\fR", _line(description) or "\\&"]
    if commands := getattr(command, "commands", None):
        lines += [
            ".SH COMMANDS",
            *(f".br\n\\fB{_text('-'.join((*words, command_name)))}\\fR(1)" for command_name in commands),
        ]
    lines += [".SH SEE ALSO", "\\fBgpuops\\fR(1), \\fBgpuops\\-commands\\fR(7), \\fBgpuops\\-exit\\-codes\\fR(7)"]
    return "\n".join(lines) + "\n"


def _topic(topic: str, text: str) -> str:
    """Return the man page of a page of the manual as troff."""
    title, _, body = text.partition("\n")
    name = f"gpuops-{topic}"
    lines = [*_head(name, 7), f"{_text(name)} \\- {_text(title.removeprefix('# '))}", ".SH DESCRIPTION"]
    example: list[str] | None = None
    for line in body.splitlines():
        if line.lstrip().startswith("```"):
            lines += _verbatim(example) if example is not None else []
            example = [] if example is None else None
        elif example is not None:
            example.append(line)
        elif not line.startswith(("<!--", "|--")):
            lines.append(_shape_line(line))
    return "\n".join(lines) + "\n"


def _shape_line(line: str) -> str:
    """Return a line of Markdown outside of examples: a heading, an item, a row of a table, or text."""
    if line.startswith("## "):
        return f".SH {_line(line[3:].upper())}"
    if list_match := re.match(r"(?:- |\d+\. )(.*)", line):
        return f".IP \\(bu 2\n{_line(list_match[1])}"
    if line.startswith("|"):
        first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        return f".TP\n{_line(first) or chr(92) + '&'}\n{_line(' - '.join(filter(None, cells))) or chr(92) + '&'}"
    return _line(line) if line.strip() else ".PP"


def _head(name: str, section: int) -> list[str]:
    return [f'.TH {_text(name.upper())} {section} "" "gpuops {__version__}" "gpuops"', ".SH NAME"]


def _verbatim(lines: list[str]) -> list[str]:
    return [".PP", ".RS 2", ".nf", *(_escape_request(_text(line)) for line in lines), ".fi", ".RE"]


def _line(text: str) -> str:
    """Return a line with bold text and links as roff, with requests of roff escaped."""
    shaped = _text(text.strip())
    for shape, as_roff in _SHAPES:
        shaped = shape.sub(as_roff, shaped)
    return _escape_request(shaped)


def _escape_request(text: str) -> str:
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: say where the man pages shall lie\nnext: python -m gpuops.cli.manpages DIRECTORY")
    sys.stdout.write(f"{write(Path(sys.argv[1]))} man pages in {sys.argv[1]}\n")
