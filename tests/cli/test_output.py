"""One document on stdout: plain and whole in a pipe, fitted to a terminal, ASCII for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from enum import StrEnum

import pytest
import yaml

from gpuops.console import output
from gpuops.console.output import Manners, OutputFormat
from gpuops.report.layout import Text, TextTable, Tree


@pytest.fixture
def documents_fit() -> None:
    """The document of these tests has no schema."""


class Power(StrEnum):
    ON = "poweredOn"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def text_again() -> Iterator[None]:
    """The format that an earlier test chose in this process is forgotten."""
    output.choose(OutputFormat.TEXT)
    output.behave(Manners())
    yield
    output.choose(OutputFormat.TEXT)
    output.behave(Manners())


DOCUMENT = {"kind": "x", "power": Power.ON, "name": "山\x9b\u202e"}
LONG = "word " * 60


def test_a_pipe_gets_whole_lines_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Text(LONG, "bold red"), DOCUMENT)
    assert capsys.readouterr().out == LONG.rstrip() + "\n"


def test_a_table_in_a_pipe_is_neither_cut_nor_padded(capsys: pytest.CaptureFixture[str]) -> None:
    table = TextTable("name", "value")
    table.add_row("x" * 100, "y" * 100)
    output.show(table, DOCUMENT)
    header, row = capsys.readouterr().out.splitlines()
    assert header == f"{'name':<100}  value"
    assert row == "x" * 100 + "  " + "y" * 100


def test_a_terminal_gets_colours_and_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "50")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    output.print_text(Text(LONG, "bold red"), terminal)
    assert "\x1b[1;31m" in terminal.getvalue()
    assert len(terminal.getvalue().splitlines()) > 5


@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[1mbad\x1b[0m news"),
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[1;31mbad\x1b[0m news"),
        ({"TERM": "dumb"}, "bad news"),
    ],
)
def test_a_terminal_without_colours_gets_none(
    environment: dict[str, str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    output.print_text(Text("bad", "bold red").append(" news"), terminal)
    assert terminal.getvalue() == f"{printed}\n"


RED, BOLD, PLAIN = "\x1b[1;31mbad\x1b[0m news", "\x1b[1mbad\x1b[0m news", "bad news"


@pytest.mark.parametrize(
    ("terminal", "no_color", "environment", "printed"),
    [
        (True, True, {}, PLAIN),
        (False, True, {}, PLAIN),
        (True, True, {"FORCE_COLOR": "1"}, PLAIN),
        (False, False, {"FORCE_COLOR": "1"}, RED),
        (False, False, {"FORCE_COLOR": "0"}, PLAIN),
        (False, False, {"FORCE_COLOR": ""}, PLAIN),
        (False, False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, PLAIN),
        (True, False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, BOLD),
        (True, False, {"FORCE_COLOR": "1", "TERM": "dumb"}, RED),
    ],
)
def test_of_colours_the_first_that_is_said_counts(
    terminal: bool, no_color: bool, environment: dict[str, str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    output.behave(Manners(no_color=no_color))
    stream = Terminal() if terminal else io.StringIO()
    output.print_text(Text("bad", "bold red").append(" news"), stream)
    assert stream.getvalue() == f"{printed}\n"


def test_what_an_encoding_lacks_is_written_as_an_escape() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, "latin-1")
    tree = Tree(Text("Zürich"))
    tree.add(Text("山"))
    output.print_text(tree, stream)
    stream.flush()
    assert buffer.getvalue() == b"Z\xfcrich\n`-- \\u5c71\n"


def test_nothing_is_written_of_a_view_that_fails() -> None:
    def view() -> Iterator[Text]:
        yield Text("a first line")
        raise ValueError

    stream = io.StringIO()
    with pytest.raises(ValueError):
        output.print_text(view(), stream)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("chosen", [OutputFormat.JSON, OutputFormat.YAML])
def test_documents_are_ascii_and_the_same(chosen: OutputFormat, capsys: pytest.CaptureFixture[str]) -> None:
    output.choose(chosen)
    output.show(Text("not this"), DOCUMENT)
    printed = capsys.readouterr().out
    assert printed.isascii()
    read = json.loads(printed) if chosen is OutputFormat.JSON else yaml.safe_load(printed)
    assert read == {"kind": "x", "power": "poweredOn", "name": "山\x9b\u202e"}


def test_an_error_is_escaped_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("no VM 'a\nb\x1b'", "", 2, "vm-not-found")
    assert capsys.readouterr().err == "error: no VM 'a\\u{a}b\\u{1b}'\n"
