"""Text views: lines with styles, tables and trees, and the lines of text that these become.

This module alone escapes what is printed: views pass the names of VMs and other foreign text unchanged, and give styles
by name, so no text contains an escape sequence of its own. `visible` documents which characters are escaped.

Widths are computed once per column, and a line is one string, because the tables of a fleet have thousands of rows
(rich's layout takes half a millisecond per row). This module does not access a terminal: `gpuops.console.output` passes
its width and chooses colours. The widths of characters are those of rich's tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, Self, TypeAlias, TypeVar

Piece = tuple[str, str]
"""A text, and its style: `bold`, `dim` and a colour, in any number; empty = none."""
Line = Sequence[Piece]
Shown: TypeAlias = "str | Text | TextTable | Tree | Iterable[Shown]"
"""The return type of a view; the parts of an iterable are printed below one another."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return the text with each character that a terminal does not show as itself written as `\\u{9b}`.

    The owners of VMs choose their names, so no printed text may move a cursor or end a line. The characters are control
    characters (C0, C1), line and paragraph separators, format characters (bidirectional overrides among them) and lone
    surrogates (CVE-2021-25743, CWE-117, CWE-150). An escaped text is returned unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _HIDDEN else character for character in text
    )


class Text:
    """One line of pieces, each escaped and with a style."""

    __slots__ = ("pieces",)

    def __init__(self, text: str = "", style: str = "") -> None:
        self.pieces: list[Piece] = [(visible(text), style)]

    def append(self, addition: str | Text, style: str = "") -> Self:
        self.pieces += addition.pieces if isinstance(addition, Text) else [(visible(addition), style)]
        return self

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table: its title, and the function that returns the cell of a row."""

    title: str
    cell: Callable[[Row], str | Text]
    right: bool = False
    """Whether the cells are aligned to the right."""
    whole: bool = False
    """Whether the cells are pasted into other commands, so that they are folded only if no other column can be."""
    least: int = 0
    """The least width that `gpuops top` may use on a terminal; 0 = as wide as its cells."""
    listed: bool = False
    """Whether `gpuops top` cuts cells at their end, where the least important text is, and not in their middle."""
    goes: int = 0
    """If a terminal is too narrow, `gpuops top` leaves out the column with the highest number; 0 = never."""


class TextTable:
    """Columns as wide as their widest cell, two blanks between them. On a terminal, cells are folded to fit."""

    __slots__ = ("headers", "right", "rows", "whole")

    def __init__(
        self,
        *headers: str,
        right: Collection[int] = (),
        whole: Collection[int] = (),
        rows: Iterable[Sequence[str | Text]] = (),
    ) -> None:
        """Make a table. `right` and `whole` are numbers of columns with these properties of `Column`."""
        self.headers = tuple(map(visible, headers))
        self.right = frozenset(right)
        self.whole = frozenset(whole)
        self.rows: list[tuple[str | Text, ...]] = []
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: str | Text) -> None:
        self.rows.append(tuple(visible(cell) if isinstance(cell, str) else cell for cell in cells))


def table_of(rows: Iterable[Row], *columns: Column[Row] | None) -> TextTable:
    """Return a table with a line for each row; columns without a definition are left out."""
    present = [column for column in columns if column is not None]
    return TextTable(
        *(column.title for column in present),
        right=[number for number, column in enumerate(present) if column.right],
        whole=[number for number, column in enumerate(present) if column.whole],
        rows=([column.cell(row) for column in present] for row in rows),
    )


class Tree:
    """A label, and below it the trees of its parts behind guides."""

    __slots__ = ("label", "parts")

    def __init__(self, label: Text) -> None:
        self.label = label
        self.parts: list[Tree] = []

    def add(self, label: Text) -> Tree:
        self.parts.append(Tree(label))
        return self.parts[-1]


_GAP: Final = "  "
_GUIDES: Final = ("├── ", "└── ", "│   ", "    ")
_ASCII_GUIDES: Final = ("+-- ", "`-- ", "|   ", "    ")


def lines(view: Shown, width: int | None = None, *, ascii_only: bool = False) -> Iterator[Line]:
    """Yield the lines of a view, wrapped between words to `width` columns where possible."""
    match view:
        case str():
            yield from _wrap([(visible(view), "")], width)
        case Text():
            yield from _wrap(view.pieces, width)
        case TextTable():
            yield from _table_lines(view, width)
        case Tree():
            yield from _tree_lines(view, width, _ASCII_GUIDES if ascii_only else _GUIDES, "", "")
        case _:
            for part in view:
                yield from lines(part, width, ascii_only=ascii_only)


def plain(view: Shown) -> str:
    """Return the view as it is written to a file or a pipe: without styles, with lines of any length."""
    return "".join(f"{''.join(text for text, _ in line).rstrip()}\n" for line in lines(view))


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, room: int) -> str:
    """Return the escaped text in at most `room` columns, without its middle: names of VMs most often differ at the end.

    >>> shortened("vdi-frankfurt-0042", 12)
    'vdi-...-0042'
    """
    text = visible(text)
    if display_width(text) <= room:
        return text
    begin, end = "", ""
    for next_at_begin, next_at_end in zip(text, reversed(text), strict=True):
        if display_width(f"{begin}...{next_at_end}{end}") > room:
            break
        end = next_at_end + end
        if display_width(f"{begin}{next_at_begin}...{end}") > room:
            break
        begin += next_at_begin
    return f"{begin}...{end}"


def cut_off(text: str, room: int) -> str:
    """Return the escaped text in at most `room` columns, with three dots where its end is left out."""
    text = visible(text)
    if display_width(text) <= room:
        return text
    beginning = ""
    for character in text:
        if display_width(f"{beginning}{character}...") > room:
            break
        beginning += character
    return f"{beginning}..."[:room]


def padded(texts: Iterable[str]) -> list[str]:
    """Return the escaped texts, each filled up with blanks to the length of the longest."""
    escaped = [visible(text) for text in texts]
    width = max(map(len, escaped), default=0)
    return [f"{text:<{width}}" for text in escaped]


def _tree_lines(tree: Tree, width: int | None, guides: Sequence[str], guide: str, guide_below: str) -> Iterator[Line]:
    """Yield the lines of a tree: `guide` before the label, `guide_below` before its further lines and its parts."""
    fork, last_fork, down, blank = guides
    room = None if width is None else max(width - len(guide_below), 1)
    for number, line in enumerate(_wrap(tree.label.pieces, room)):
        line_guide = guide_below if number else guide
        yield [(line_guide, "dim"), *line] if line_guide else line
    for part in tree.parts:
        part_fork, part_below = (last_fork, blank) if part is tree.parts[-1] else (fork, down)
        yield from _tree_lines(part, width, guides, guide_below + part_fork, guide_below + part_below)


def _table_lines(table: TextTable, width: int | None) -> Iterator[Line]:
    """Yield the lines of a table; with a `width`, wide columns are cut to fit into it."""
    header = [tuple(Text(text, "bold") for text in table.headers)] if table.headers else []
    widths = [0] * len((header or table.rows or [()])[0])
    for row in chain(header, table.rows):
        for column, cell in enumerate(row):
            cell_width = display_width(cell if isinstance(cell, str) else cell.plain)
            if cell_width > widths[column]:
                widths[column] = cell_width
    if width is not None:
        widths = _fit_widths(widths, width - len(_GAP) * (len(widths) - 1), table.whole)
    for row in chain(header, table.rows):
        yield from _row_lines(row, widths, table.right, folded=width is not None)


def _fit_widths(widths: Sequence[int], room: int, whole: Collection[int] = ()) -> list[int]:
    """Return the widths with the widest columns cut to one common width, so that all columns fit into `room`.

    `whole` columns are cut only if cutting all others does not suffice.

    >>> _fit_widths([4, 30, 50], 44), _fit_widths([4, 30, 50], 44, {1})
    ([4, 20, 20], [4, 30, 10])
    """
    cuttable = set(range(len(widths))) - set(whole)
    limit = max((widths[column] for column in cuttable), default=0)
    fitted = list(widths)
    while limit > 1 and sum(fitted) > room:
        limit -= 1
        fitted = [min(width, limit) if column in cuttable else width for column, width in enumerate(widths)]
    return _fit_widths(fitted, room) if whole and sum(fitted) > room else fitted


def _row_lines(
    row: Sequence[str | Text], widths: Sequence[int], right: Collection[int], *, folded: bool
) -> Iterator[Line]:
    """Yield the lines of a row with its cells padded; if `folded`, cells are wrapped to the widths."""
    if not folded and all(isinstance(cell, str) for cell in row):  # faster: a fleet has thousands of rows
        padded_cells = (
            f"{' ' * (width - display_width(cell))}{cell}"
            if column in right
            else f"{cell}{' ' * (width - display_width(cell))}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
            if isinstance(cell, str)
        )
        yield [(_GAP.join(padded_cells), "")]
        return
    wrapped = [
        list(_wrap([(cell, "")] if isinstance(cell, str) else cell.pieces, width if folded else None))
        for cell, width in zip(row, widths, strict=False)
    ]
    # one line of the terminal each: the cells that have fewer lines are blank there
    for number in range(max(map(len, wrapped), default=0)):
        line: list[Piece] = []
        for column, (parts, width) in enumerate(zip(wrapped, widths, strict=False)):
            part = parts[number] if number < len(parts) else []
            blank = (" " * (width - sum(display_width(text) for text, _ in part)), "")
            line += [blank, *part] if column in right else [*part, blank]
            line.append((_GAP, ""))
        yield line


def _wrap(pieces: Sequence[Piece], width: int | None) -> Iterator[Line]:
    """Yield the pieces as lines of at most `width` columns."""
    if width is None or sum(display_width(text) for text, _ in pieces) <= width:
        yield pieces
        return
    starts = _line_starts("".join(text for text, _ in pieces), width)
    for begin, end in zip(starts, [*starts[1:], None], strict=True):
        yield _without_trailing_blanks(_slice_pieces(pieces, begin, end))


_WORD: Final = re.compile(r"\s*\S+\s*")


def _line_starts(text: str, width: int) -> list[int]:
    """Return the index at which each line of a text begins: at a word, or inside a word that is wider than a line.

    >>> _line_starts("ab cde fghijklm", 6)
    [0, 7, 13]
    """
    starts, used_width = [0], 0
    for word in _WORD.finditer(text):
        word_text = word.group().rstrip()
        word_width = display_width(word_text)
        if word_width > width:
            # no line holds this word: break it between two characters
            for index in range(word.start(), word.start() + len(word_text)):
                character_width = display_width(text[index])
                if used_width + character_width > width and index > starts[-1]:
                    starts.append(index)
                    used_width = 0
                used_width += character_width
            used_width += len(word.group()) - len(word_text)
            continue
        if used_width + word_width > width and word.start() > starts[-1]:
            starts.append(word.start())
            used_width = 0
        used_width += display_width(word.group())
    return starts


def _slice_pieces(pieces: Sequence[Piece], begin: int, end: int | None) -> list[Piece]:
    """Return the pieces of the text from `begin` to `end`, which count characters of all pieces; None = to the end."""
    parts, offset = [], 0
    for text, style in pieces:
        part = text[max(begin - offset, 0) : None if end is None else max(end - offset, 0)]
        if part:
            parts.append((part, style))
        offset += len(text)
    return parts


def _without_trailing_blanks(line: list[Piece]) -> list[Piece]:
    """Return the line without the blanks at its end, which may exceed the width."""
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        text, style = line[-1]
        line[-1] = (text.rstrip(), style)
    return line
