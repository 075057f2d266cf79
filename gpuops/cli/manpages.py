"""Makes a man page of section 1 from the help of each command, and one of section 7 from each page of the manual.

python -m gpuops.cli.manpages DIRECTORY     writes them into man1 and man7 there: `man -M DIRECTORY gpuops-attach`

They contain no date: the same sources give the same files.
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

_INLINE_MARKUP: Final = (
    (re.compile(r"`([^`]+)`"), r"\\fB\1\\fR"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\\fB\1\\fR"),
    (re.compile(r"\[([^\]]+)\]\([^)]+\)"), r"\1"),
)
"""Patterns of Markdown inside a line, and their roff: code and bold become bold, a link becomes its words."""


def pages(root: Any, manual: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of every man page: of the commands below the root, and of the topics of the manual."""
    for words, context in _contexts(root, ("gpuops",), None):
        name = "-".join(words)
        yield f"man1/{name}.1", _command_page(words, context)
    for topic, text in {**manual, "options": option_table(root)}.items():
        yield f"man7/gpuops-{topic}.7", _topic_page(topic, text)


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


def _command_page(words: tuple[str, ...], context: Any) -> str:
    """Return the man page of a command as troff."""
    command, name = context.command, "-".join(words)
    summary, *paragraphs = re.split(r"\n\n", (command.help or "").strip())
    description = " ".join(summary.split())
    lines = [
        *_page_header(name, 1),
        f"{_escape_text(name)} \\- {_escape_text(description.rstrip('.'))}",
        ".SH SYNOPSIS",
    ]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [
        f"\\fB{_escape_text(' '.join(words))}\\fR {_escape_text(usage)}",
        ".SH DESCRIPTION",
        _roff_line(description),
    ]
    for paragraph in paragraphs:
        is_example = paragraph.startswith("\b")
        lines += (
            _verbatim(paragraph.lstrip("\b\n").splitlines())
            if is_example
            else [".PP", _roff_line(" ".join(paragraph.split()))]
        )
    if command.epilog:
        lines += _verbatim(command.epilog.lstrip("\b\n").splitlines())
    lines.append(".SH OPTIONS")
    for names, description in filter(
        None, (parameter.get_help_record(context) for parameter in command.get_params(context))
    ):
        lines += [".TP", f"\\fB{_escape_text(names)}\\fR", _roff_line(description) or "\\&"]
    if commands := getattr(command, "commands", None):
        lines += [
            ".SH COMMANDS",
            *(f".br\n\\fB{_escape_text('-'.join((*words, command_name)))}\\fR(1)" for command_name in commands),
        ]
    lines += [".SH SEE ALSO", "\\fBgpuops\\fR(1), \\fBgpuops\\-commands\\fR(7), \\fBgpuops\\-exit\\-codes\\fR(7)"]
    return "\n".join(lines) + "\n"


def _topic_page(topic: str, text: str) -> str:
    """Return the man page of a page of the manual as troff."""
    title, _, body = text.partition("\n")
    name = f"gpuops-{topic}"
    lines = [
        *_page_header(name, 7),
        f"{_escape_text(name)} \\- {_escape_text(title.removeprefix('# '))}",
        ".SH DESCRIPTION",
    ]
    example: list[str] | None = None  # the lines since the opening ``` of a code block
    for line in body.splitlines():
        if line.lstrip().startswith("```"):
            lines += _verbatim(example) if example is not None else []
            example = [] if example is None else None
        elif example is not None:
            example.append(line)
        elif not line.startswith(("<!--", "|--")):
            lines.append(_markdown_to_roff(line))
    return "\n".join(lines) + "\n"


def _markdown_to_roff(line: str) -> str:
    """Return a line of Markdown outside of examples: a heading, an item, a row of a table, or text."""
    if line.startswith("## "):
        return f".SH {_roff_line(line[3:].upper())}"
    if list_match := re.match(r"(?:- |\d+\. )(.*)", line):
        return f".IP \\(bu 2\n{_roff_line(list_match[1])}"
    if line.startswith("|"):
        first_cell, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        # roff needs a text in both lines; \& is invisible
        term, description = (_roff_line(cell) or "\\&" for cell in (first_cell, " - ".join(filter(None, cells))))
        return f".TP\n{term}\n{description}"
    return _roff_line(line) if line.strip() else ".PP"


def _page_header(name: str, section: int) -> list[str]:
    return [f'.TH {_escape_text(name.upper())} {section} "" "gpuops {__version__}" "gpuops"', ".SH NAME"]


def _verbatim(lines: list[str]) -> list[str]:
    return [".PP", ".RS 2", ".nf", *(_escape_request(_escape_text(line)) for line in lines), ".fi", ".RE"]


def _roff_line(text: str) -> str:
    """Return a line with bold text and links as roff, with requests of roff escaped."""
    shaped = _escape_text(text.strip())
    for shape, as_roff in _INLINE_MARKUP:
        shaped = shape.sub(as_roff, shaped)
    return _escape_request(shaped)


def _escape_request(text: str) -> str:
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _escape_text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: a directory for the man pages is needed\nnext: python -m gpuops.cli.manpages DIRECTORY")
    sys.stdout.write(f"{write(Path(sys.argv[1]))} man pages in {sys.argv[1]}\n")
