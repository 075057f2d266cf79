"""The rows of `gpuops top` as a table: cut to the size of a terminal, complete in a pipe, a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, TypeAlias

from gpuops.extras.web.top import Top, TopLevel, TopRow, heading_lines
from gpuops.extras.web.top_view import TopView, visible_rows
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.report.document import DocumentRecord, SiteDocument, printed
from gpuops.report.layout import Column, Line, Piece, Shown, Text, cut_off, display_width, shortened, table_of
from gpuops.report.text import optional_figure

BAR_CELLS: Final = 8
BUSY_PERCENT: Final = 80.0
IDLE_PERCENT: Final = 5.0
"""GPUs with less use are shown dim."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_GAP: Final = "  "
Columns: TypeAlias = Sequence[Column[TopRow]]


def _use_text(row: TopRow) -> str:
    return "?" if row.use.utilization_percent is None else f"{row.use.utilization_percent:.0f} %"


def bar(row: TopRow) -> str:
    """Return the use as a bar of eight cells, in eighths; empty if it is unknown."""
    percent = row.use.utilization_percent
    if percent is None:
        return ""
    eighths = round(min(percent, 100) / 100 * BAR_CELLS * 8)
    full_cells, eighths_left = divmod(eighths, 8)
    return ("█" * full_cells + (_EIGHTHS[eighths_left] if eighths_left else "")).ljust(BAR_CELLS, "·")


def _memory_text(row: TopRow) -> str:
    """Return `36/48 GiB`; an unknown part is `?`."""
    used = "?" if row.use.memory_used_mib is None else f"{row.use.memory_used_mib / 1024:.0f}"
    if row.memory_mib is None:
        return f"{used} GiB" if used != "?" else "?"
    return f"{used}/{row.memory_mib / 1024:.0f} GiB"


def _vm_names(row: TopRow) -> str:
    if row.vms is None:
        return "?"
    return ", ".join(row.vms)


_USE_COLUMNS: Final[Columns] = (
    Column("", bar, goes=5),
    Column("use", _use_text, right=True),
    Column("memory", _memory_text, right=True),
)
_HEAT_AND_POWER_COLUMNS: Final[Columns] = (
    Column("°C", lambda row: optional_figure(row.use.temperature_c), right=True, goes=7),
    Column("W", lambda row: optional_figure(row.use.power_w), right=True, goes=8),
)
_SESSIONS_COLUMN: Final[Column[TopRow]] = Column(
    "sessions", lambda row: optional_figure(row.sessions), right=True, goes=4
)

COLUMNS: Final[Mapping[TopLevel, Columns]] = {
    TopLevel.HOSTS: (
        Column("host", lambda row: row.name, least=12),
        Column("cluster", lambda row: row.detail, least=8, goes=6),
        Column("GPUs", lambda row: f"{row.gpus_held}/{row.gpus}", right=True),
        *_USE_COLUMNS,
        *_HEAT_AND_POWER_COLUMNS,
        Column("VMs", lambda row: "?" if row.vms is None else str(len(row.vms)), right=True, goes=3),
        _SESSIONS_COLUMN,
        Column("state", lambda row: row.state, least=8, listed=True),
    ),
    TopLevel.GPUS: (
        Column("host", lambda row: row.host, least=8, goes=2),
        Column("GPU", lambda row: row.name),
        Column("model", lambda row: row.detail, least=8, goes=9),
        *_USE_COLUMNS,
        *_HEAT_AND_POWER_COLUMNS,
        _SESSIONS_COLUMN,
        Column("VMs", _vm_names, least=8, listed=True),
        Column("mode", lambda row: row.state, least=8, listed=True, goes=6),
    ),
    TopLevel.VMS: (
        Column("VM", lambda row: row.name, least=12),
        Column("host", lambda row: row.host, least=8, goes=6),
        Column("state", lambda row: row.state, least=8, listed=True),
        Column("GPU devices", lambda row: row.detail, least=8, listed=True, goes=7),
        *_USE_COLUMNS,
        Column("CPU MHz", lambda row: optional_figure(row.cpu_mhz, unknown="-"), right=True, goes=8),
        _SESSIONS_COLUMN,
        Column("idle?", lambda row: row.verdict, least=8, listed=True, goes=9),
    ),
}
"""`?` = not known."""


def top_text(top: Top, level: TopLevel, rows: Sequence[TopRow]) -> Shown:
    """Return the complete table, without bars."""
    columns = [column for column in _columns_with_content(level, rows) if column.title]
    return (*heading_lines(top), table_of(rows, *columns[:-1], replace(columns[-1], right=False)))


class TopRowRecord(DocumentRecord, frozen=True):
    """One host, GPU or VM; null = not known, or not of this kind of row."""

    key: Annotated[str, "stays the same for a host, GPU or VM in each reading"]
    name: Annotated[str, "of a GPU its PCI address"]
    host: Annotated[str | None, "its name"]
    cluster: Annotated[str | None, "of a host"]
    model: Annotated[str | None, "of a GPU"]
    devices: Annotated[str | None, "of a VM, its GPU devices"]
    state: Annotated[
        str, "of a host what is unusual, of a GPU its mode, of a VM its power state and its state in a night"
    ]
    utilization_percent: Annotated[float | None, "of a host the mean of its measured GPUs"]
    memory_used_mib: Annotated[int | None, "GPU memory in use"]
    temperature_c: Annotated[int | None, "of a host its hottest GPU"]
    power_w: Annotated[int | None, "of a host the sum of its GPUs"]
    memory_mib: Annotated[int | None, "GPU memory in total"]
    gpus: Annotated[int | None, "of a host"]
    gpus_held: Annotated[int | None, "how many of them have a VM"]
    vms: Annotated[list[str] | None, "names of the VMs on it"]
    sessions: Annotated[int | None, "console connections to its VMs"]
    cpu_mhz: Annotated[int | None, "of a VM that runs"]
    verdict: Annotated[str | None, "of a desktop of the policy, whether it is idle and why"]


class TopRotationRecord(DocumentRecord, frozen=True):
    """What rotates, and the VMs of open nights."""

    under_way: Annotated[str | None, "the command that rotates now"]
    cut_off: Annotated[str | None, "the run that began last and did not end"]
    away: Annotated[int, "VMs that are suspended or run for a night"]
    changing: int
    lost: Annotated[int, "VMs that are neither in the state of their night nor back"]


class TopChangeRecord(DocumentRecord, frozen=True):
    """A change that has not ended."""

    verb: str
    under_way: Annotated[bool, "whether a process works on it now"]
    parts: Annotated[int, "hosts, or VMs of a defrag"]
    parts_done: int


@printed("top", by="gpuops top")
class TopDocument(SiteDocument, frozen=True):
    """Hosts, GPUs or VMs with what they use now, and what runs for a night or a change."""

    level: TopLevel
    rows: Annotated[list[TopRowRecord], "in the requested order"]
    rotation: TopRotationRecord
    change: Annotated[TopChangeRecord | None, "the change of hosts or move of VMs that has not ended"]


def top_document(top: Top, level: TopLevel, rows: Sequence[TopRow]) -> TopDocument:
    """Return the document of these rows, in their order, and what runs for a rotation or a change. null = unknown."""
    rotation, change = top.rotation, top.change
    parts, under_way = len(change.parts), bool(change.holder)
    return TopDocument.from_attributes(
        top.inventory,
        read_at=top.inventory.taken_at,
        level=level,
        rows=[_row_record(row, level) for row in rows],
        rotation=TopRotationRecord(
            under_way=rotation.doing if rotation.under_way is not None else None,
            cut_off=rotation.cut_off,
            away=top.count_taken_vms(Whereabouts.AWAY),
            changing=top.count_taken_vms(Whereabouts.CHANGING),
            lost=top.lost_vm_count,
        ),
        change=TopChangeRecord(change.verb, under_way, parts, top.parts_done) if change.verb else None,
    )


def _row_record(row: TopRow, level: TopLevel) -> TopRowRecord:
    return TopRowRecord.from_attributes(
        row,
        row.use,
        host=row.host or None,
        cluster=row.detail if level is TopLevel.HOSTS else None,
        model=row.detail if level is TopLevel.GPUS else None,
        devices=row.detail if level is TopLevel.VMS else None,
        verdict=row.verdict or None,
    )


def screen_lines(top: Top, view: TopView, width: int, height: int, note: str = "") -> Iterator[Line]:
    """Yield the lines of a terminal of this size: what runs, the rows around the selected one, and the keys.

    `note`: the error of the last read, if it failed; the rows are then those of the last successful read.
    """
    heading = [line.pieces for line in heading_lines(top)]
    if note:
        heading.append(Text(note, "bold red").pieces)
    rows = visible_rows(top, view)
    page_size = rows_shown(height, len(heading))
    selected = view.selected_number(rows)
    page_begin = selected // page_size * page_size  # the first row of the page that the selected row is on
    page_rows = rows[page_begin : page_begin + page_size]
    columns = [
        column
        for column in _columns_with_content(view.level, rows)
        if column.title != "host" or not _shows_one_host(view)
    ]
    fitting_columns, widths = fit_columns(columns, page_rows, width)
    for pieces in heading:
        yield _cut_line(pieces, width)
    yield _cut_line(Text(_position_line(top, view, len(rows)), "cyan").pieces, width)
    titles = [column.title for column in fitting_columns]
    yield _table_line(titles, fitting_columns, widths, ["bold"] * len(titles))
    for number, row in enumerate(page_rows, page_begin):
        texts = [_cell_text(column, row) for column in fitting_columns]
        styles = [_style(column, row) for column in fitting_columns]
        if number == selected:
            styles = ["reverse"] * len(styles)
        yield _table_line(texts, fitting_columns, widths, styles, "reverse" if number == selected else "")
    for _ in range(page_size - len(page_rows)):
        yield []
    yield _cut_line([(_key_help(view), "dim")], width)


def _shows_one_host(view: TopView) -> bool:
    return view.level is TopLevel.GPUS and view.inside is not None


def _cell_text(column: Column[TopRow], row: TopRow) -> str:
    return Text().append(column.cell(row)).plain


def rows_shown(height: int, heading_count: int) -> int:
    """Return how many rows fit on a terminal of this height, below that many heading lines."""
    return max(1, height - heading_count - 3)  # 3: the lines of the position, the titles and the keys


def _columns_with_content(level: TopLevel, rows: Sequence[TopRow]) -> list[Column[TopRow]]:
    """Return the columns without those that are empty, for example because no policy was given."""
    optional = {"idle?", "°C", "W", ""}
    return [
        column
        for column in COLUMNS[level]
        if column.title not in optional or any(column.cell(row) not in ("", "?") for row in rows)
    ]


def fit_columns(columns: Columns, rows: Sequence[TopRow], width: int) -> tuple[list[Column[TopRow]], list[int]]:
    """Return the columns that fit into the width, and the width of each.

    First the widest column is narrowed, again and again, down to the `least` width of each. If that is not enough, the
    column with the highest `goes` is left out, and all widths are computed again.
    """
    fitting_columns = list(columns)
    while True:
        widths = [
            max([display_width(column.title), *(display_width(_cell_text(column, row)) for row in rows)])
            for column in fitting_columns
        ]
        room = width - len(_GAP) * (len(fitting_columns) - 1)
        while sum(widths) > room:
            cuttable = [n for n, column in enumerate(fitting_columns) if column.least and widths[n] > column.least]
            if not cuttable:
                break
            widest = max(cuttable, key=lambda n: widths[n])
            widths[widest] -= 1
        next_removed = max(fitting_columns, key=lambda column: column.goes)
        if sum(widths) <= room or not next_removed.goes:  # 0 = this column always stays
            return fitting_columns, widths
        fitting_columns.remove(next_removed)


def _table_line(
    texts: Sequence[str], columns: Columns, widths: Sequence[int], styles: Sequence[str], gap_style: str = ""
) -> Line:
    """Return one line of the table, with each text cut and padded to the width of its column."""
    pieces: list[Piece] = []
    for text, column, width, style in zip(texts, columns, widths, styles, strict=True):
        cut = cut_off(text, width) if column.listed else shortened(text, width)
        blank = " " * (width - display_width(cut))
        pieces.append((f"{blank}{cut}" if column.right else f"{cut}{blank}", style))
        pieces.append((_GAP, gap_style))
    return pieces[:-1]  # no gap after the last column


def _cut_line(pieces: Sequence[Piece], width: int) -> Line:
    """Return the pieces, cut to the width of the line."""
    cut_pieces, cells_left = [], width
    for text, style in pieces:
        cut = shortened(text, cells_left) if display_width(text) > cells_left else text
        cut_pieces.append((cut, style))
        cells_left -= display_width(cut)
        if cells_left <= 0:
            break
    return cut_pieces


def _style(column: Column[TopRow], row: TopRow) -> str:
    if column.title in ("", "use"):
        return _use_style(row.use.utilization_percent)
    if column.title in ("state", "mode"):
        return "yellow" if row.warns else "dim"
    if column.title == "idle?":
        return "green" if row.verdict.startswith("idle") else "dim"
    return ""


def _use_style(percent: float | None) -> str:
    if percent is None or percent < IDLE_PERCENT:
        return "dim"
    return "yellow" if percent >= BUSY_PERCENT else "green"


def _position_line(top: Top, view: TopView, row_count: int) -> str:
    """Return `GPUs of esx-01, by use, with "a40": 8`."""
    inside_name = view.inside.name if view.inside is not None else ""
    rows_word = {TopLevel.HOSTS: "hosts", TopLevel.GPUS: "GPUs", TopLevel.VMS: "VMs"}[view.level]
    with_text = f', with "{view.containing}"' if view.containing or view.typing else ""
    return f"{rows_word}{f' of {inside_name}' if inside_name else ''}, by {view.sort}{with_text}: {row_count}"


def _key_help(view: TopView) -> str:
    if view.typing:
        return "type a text that the rows must contain; Enter keeps this filter, Esc removes it"
    return "↑ ↓ select  Enter into  Esc back  h hosts  g GPUs  v VMs  s sort  / filter  q quit"
