"""The answers of several sites as one text, one document and one CSV table.

Tables with the same columns are merged into one whose first column is the site. If views have no table, or tables with
different columns, each site has a heading with its own view below it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self, TypeAlias
from zoneinfo import ZoneInfo

from gpuops.errors import NotConnected, PartlyDone, UsageError
from gpuops.model.time_text import format_zoned_minute
from gpuops.report.document import Document, DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.json_and_csv import DocumentTexts, cell_text
from gpuops.report.layout import Shown, Text, TextTable, Tree
from gpuops.report.text import count

Block: TypeAlias = "str | Text | TextTable | Tree"
SITE: Final = "site"


@dataclass(frozen=True, slots=True)
class SiteFailure:
    """Why a site has no answer."""

    message: str
    hint: str
    exit_code: int
    code: str
    """As in the document of an error."""

    @property
    def is_unreachable(self) -> bool:
        """Return whether its vCenter was not reached; False = it was reached, and the request failed."""
        return self.exit_code == NotConnected.exit_code


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """The answer of one site, or the reason for its absence."""

    site: str
    exit_code: int
    answered_at: datetime
    """In UTC."""
    zone: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    view: tuple[Block, ...] = ()
    """The text that it prints, in its blocks from top to bottom."""
    kind: str | None = None
    """The kind of its document; None = no document was requested."""
    json: str = ""
    """That document as text, which is copied into another one without being parsed."""
    csv: str = ""
    failure: SiteFailure | None = None

    @property
    def document(self) -> Document:
        """Return the document as dicts, lists and JSON's own types."""
        import msgspec

        return msgspec.json.decode(self.json, type=dict[str, Any])

    @property
    def local_time(self) -> datetime:
        """Return the moment of the answer, in the zone of the site."""
        return self.answered_at.astimezone(ZoneInfo(self.zone) if self.zone is not None else UTC)


def exit_code_of(answers: Sequence[SiteAnswer]) -> int:
    """Return the highest exit code of the sites; 4 if some did not answer; 5 if none did, unless all failed with the
    same code."""
    failed = {answer.exit_code for answer in answers if answer.failure is not None}
    if not failed:
        return max(answer.exit_code for answer in answers)
    if any(answer.failure is None for answer in answers):
        return PartlyDone.exit_code
    return failed.pop() if len(failed) == 1 else NotConnected.exit_code


def common_failure(answers: Sequence[SiteAnswer]) -> SiteFailure | None:
    """Return the failure that all sites share because the request itself is wrong (exit code 2), or None."""
    failures = {answer.failure for answer in answers}
    common = failures.pop() if len(failures) == 1 else None
    return common if common is not None and common.exit_code == UsageError.exit_code else None


def blocks(view: Shown) -> tuple[Block, ...]:
    """Return the view as a flat sequence. An iterator in it is consumed."""
    if isinstance(view, str | Text | TextTable | Tree):
        return (view,)
    return tuple(block for part in view for block in blocks(part))


def sites_text(answers: Sequence[SiteAnswer]) -> Shown:
    """Return all answers, and the names of the sites that failed; their reasons are printed on stderr.

    If all tables have the same headers, they are merged into one; otherwise each site has a heading.
    """
    answered = [answer for answer in answers if answer.failure is None]
    parts: list[Shown] = []
    if answered:
        # for each site with tables, the headers of these
        headers_of_sites = [
            headers
            for answer in answered
            if (headers := [block.headers for block in answer.view if isinstance(block, TextTable)])
        ]
        same_headers = bool(headers_of_sites) and all(headers == headers_of_sites[0] for headers in headers_of_sites)
        has_tree = any(isinstance(block, Tree) for answer in answered for block in answer.view)
        parts += _merge_views(answered) if same_headers and not has_tree else _below_headings(answered)
    if len(answered) < len(answers):
        parts += [*([""] if answered else []), Text(_closing_line(answers), "bold red")]
    return parts


def _closing_line(answers: Sequence[SiteAnswer]) -> str:
    """Return the closing line: `2 of 3 sites answered; not reached: muc; failed: ber`."""
    missing = [(answer.site, answer.failure) for answer in answers if answer.failure is not None]
    unreachable = ", ".join(site for site, failure in missing if failure.is_unreachable)
    failed = ", ".join(site for site, failure in missing if not failure.is_unreachable)
    summary = f"{len(answers) - len(missing)} of {count(len(answers), 'site')} answered"
    return (
        summary + (f"; not reached: {unreachable}" if unreachable else "") + (f"; failed: {failed}" if failed else "")
    )


def _below_headings(answered: Sequence[SiteAnswer]) -> Iterator[Shown]:
    for number, answer in enumerate(answered):
        if number:
            yield ""
        yield Text(answer.site, "bold").append(f", {format_zoned_minute(answer.local_time)}", "dim")
        yield answer.view


def _merge_views(answered: Sequence[SiteAnswer]) -> Iterator[Shown]:
    """Yield the tables of all sites merged, with the lines before each and after the last."""
    parts = {answer.site: _sections(answer.view) for answer in answered}
    for number in range(max(map(len, parts.values()))):
        sections = {site: site_sections[number] for site, site_sections in parts.items() if number < len(site_sections)}
        yield from _merge_lines({site: lines for site, (lines, _) in sections.items()})
        tables = {site: table for site, (_, table) in sections.items() if table is not None}
        if tables:
            yield _merge_tables(tables)


def _sections(view: Iterable[Block]) -> list[tuple[list[Text], TextTable | None]]:
    """Return each table with the lines before it. The last section has no table."""
    sections: list[tuple[list[Text], TextTable | None]] = []
    lines: list[Text] = []
    for block in view:
        if isinstance(block, TextTable):
            sections.append((lines, block))
            lines = []
        elif not isinstance(block, Tree):
            lines.append(block if isinstance(block, Text) else Text(block))
    return [*sections, (lines, None)]


def _merge_lines(lines_by_site: Mapping[str, list[Text]]) -> Iterator[Shown]:
    """Yield the lines once if all sites print the same, or else each line with its site."""
    texts = [[line.pieces for line in site_lines] for site_lines in lines_by_site.values()]
    if all(pieces == texts[0] for pieces in texts):
        yield from next(iter(lines_by_site.values()))
        return
    for site, site_lines in lines_by_site.items():
        yield from (Text(f"{site}: ", "bold").append(line) for line in site_lines if line.plain)


def _merge_tables(tables: Mapping[str, TextTable]) -> TextTable:
    """Return one table with the rows of all sites, and the site as the first column."""
    any_table = next(iter(tables.values()))  # all have the same columns
    headers = (SITE, *any_table.headers) if any_table.headers else ()
    right, whole = ({number + 1 for number in columns} for columns in (any_table.right, any_table.whole))
    merged = TextTable(*headers, right=right, whole={0, *whole})
    for site, table in tables.items():
        for row in table.rows:
            merged.add_row(site, *row)
    return merged


class AskedSiteRecord(DocumentRecord, frozen=True):
    """One site."""

    exit_code: Annotated[int, "the one of the command for this site alone"]
    zone: Annotated[str | None, "its IANA time zone, as the configuration file says; null = none is said"]
    labels: Annotated[dict[str, str], "as the configuration file says"]
    at: Annotated[Moment, "when it answered or was given up, in its zone"]

    @classmethod
    def made_of(cls, answer: SiteAnswer) -> Self:
        return cls.from_attributes(answer, labels=dict(answer.labels), at=answer.local_time)


class SiteFailureRecord(DocumentRecord, frozen=True):
    """Why a site has no answer."""

    code: Annotated[str, "which error it is, as in a document of kind error"]
    message: str
    hint: Annotated[str, "the next move; empty = none is known"]
    exit_code: int


@printed("sites", by="the commands that read, with --site")
class SitesDocument(PrintedDocument, frozen=True):
    """The answers of several sites."""

    of: Annotated[str | None, "the kind of their documents; null = no site answered"]
    exit_code: int
    asked: Annotated[dict[str, AskedSiteRecord], "every site that was asked, by its name in the configuration file"]
    sites: Annotated[
        dict[str, dict[str, Any]],
        "the document of each site that answered, as the command prints it of that vCenter alone",
    ]
    unreachable: Annotated[
        dict[str, SiteFailureRecord], "whose vCenter was not reached, not trusted, refused the login or took too long"
    ]
    failed: Annotated[dict[str, SiteFailureRecord], "whose vCenter was reached, and what was asked could not be done"]


def sites_document(answers: Sequence[SiteAnswer]) -> SitesDocument:
    """Return the document with the answers of all sites, and the reasons of those without an answer."""
    with_documents = [answer for answer in answers if answer.failure is None and answer.kind is not None]
    kinds = {answer.kind for answer in with_documents}
    failed = [(answer.site, answer.failure) for answer in answers if answer.failure is not None]
    return SitesDocument.from_attributes(
        of=kinds.pop() if len(kinds) == 1 else None,
        exit_code=exit_code_of(answers),
        asked={answer.site: AskedSiteRecord.made_of(answer) for answer in answers},
        sites=DocumentTexts({answer.site: answer.json for answer in with_documents}),
        unreachable={site: SiteFailureRecord.made_of(failure) for site, failure in failed if failure.is_unreachable},
        failed={site: SiteFailureRecord.made_of(failure) for site, failure in failed if not failure.is_unreachable},
    )


def merged_csv(tables: Mapping[str, str], column: str = SITE) -> str:
    """Return one table made of the tables of all sites, with the site as the first column. All have the same header.

    >>> merged_csv({"fra": "vm,gpus\\nml,1\\n", "muc": "vm,gpus\\n"})
    'site,vm,gpus\\nfra,ml,1\\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header: list[Any] = []
    for site, text in tables.items():
        site_header, *rows = csv.reader(io.StringIO(text, newline=""))
        if not header:
            header = [column, *site_header]
            writer.writerow(header)
        writer.writerows([cell_text(site), *row] for row in rows)
    return out.getvalue()
