"""The page: one HTML file that opens from disk, loads nothing, and shows the document of a report, or of several sites.

The owners of VMs choose their names. In the markup Jinja2 escapes them. The document in the page contains no `<`, so
that no text in it can end its element. The script writes text only into text nodes. A Content Security Policy in the
page allows only its one script to run, and nothing to load (CSP 3: the SHA-256 of inline text).

The page for several sites has a table with their figures, and below it the page of each site in a frame with `srcdoc`.
A frame inherits the Content Security Policy of the page around it (HTML standard, "initialize a navigable's document
from srcdoc"), so the policy of the outer page lists the scripts and styles of both. A server shows only the table, and
keeps it current.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final

from gpuops.model.devices.vgpu import parse
from gpuops.model.time_text import format_minute, format_minutes, format_zoned_minute
from gpuops.report.document import Document
from gpuops.report.layout import visible
from gpuops.report.monitoring.inventory_view import without_series
from gpuops.report.sites import SiteAnswer
from gpuops.report.text import count

_SCRIPTS: Final = ("page.js", "use.js", "map.js", "night.js")


def page(document: Document) -> str:
    """Return the page of a report's document (`fleet_report_document`)."""
    style, script = page_style(), page_script()
    policy = content_security_policy((script,), style)
    return _render(document, edition="", style=style, script=script, policy=policy, data=_json_for_script(document))


def served_page(document: Document, edition: str, documents: Sequence[str], above: str = "") -> str:
    """Return the page for a server that keeps it current: script, style and data have addresses of their own.

    `edition` identifies this version of the page, `documents` are the names below `api/` that it links, `above` is the
    address of the table of all sites, or empty if this is the only one.
    """
    return _render(document, edition=edition, documents=documents, above=above)


def page_script() -> str:
    """Return the script of a page."""
    return '"use strict";\n' + "".join(map(source, _SCRIPTS))


def page_style() -> str:
    """Return the style of the page."""
    return source("page.css")


def drawing_script() -> str:
    """Return the page's script as the function `draw`, which draws the map and the night of a document."""
    return f'"use strict";\nconst draw = () => {{\n{"".join(map(source, _SCRIPTS))}}};\n'


def _render(document: Document, **variables: Any) -> str:
    """Return the page of a report; `variables` are further ones of the template `page.html.j2`."""
    text: str = (
        environment()
        .get_template("page.html.j2")
        .render(
            report=document,
            findings=merge_findings(document["findings"]),
            idle=_desktops_by_interest(document),
            boards=_free_slots_by_board(document["capacity"]["profiles"]),
            **variables,
        )
    )
    return text


def merge_findings(findings: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the findings with those that differ only in their subject merged, in their order: the worst first."""
    subjects_by_finding: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        subjects_by_finding.setdefault((finding["severity"], finding["reason"], finding["fix"]), []).append(
            finding["subject"]
        )
    return [
        {"severity": severity, "reason": reason, "fix": fix, "subjects": subjects}
        for (severity, reason, fix), subjects in subjects_by_finding.items()
    ]


def _desktops_by_interest(document: Document) -> list[Document]:
    """Return the desktops in the order of interest: idle ones first, the largest of them first, then the others."""
    order = {"idle": 0, "unknown": 1, "busy": 2}
    return sorted(
        document["idle"] or (),
        key=lambda desktop: (order[desktop["verdict"]], -(desktop["gpus"] or 0), desktop["name"]),
    )


def _free_slots_by_board(profiles: Sequence[Document]) -> dict[str, list[Document]]:
    """Return lines of free slots by GPU model (board).

    Profiles with equal figures that differ only in the letter of the series share a line: `a40-8a|c|q`.
    """
    # by board: the letters by (name of the profile without the letter, and its figures as texts)
    boards: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for profile in profiles:
        stem = without_series(profile["name"])
        figures = tuple(_slots(profile[key]) for key in ("now", "in_one_vm", "after"))
        parts = parse(profile["name"])
        board = parts.esxi_prefix.rstrip("-") if parts is not None else "other profiles"
        boards.setdefault(board, {}).setdefault((stem, *figures), []).append(profile["name"][len(stem) :])
    return {
        board: [
            {"name": f"{stem}{'|'.join(letters)}", "now": now, "in_one_vm": in_one_vm, "after": after}
            for (stem, now, in_one_vm, after), letters in rows.items()
        ]
        for board, rows in boards.items()
    }


def content_security_policy(scripts: Sequence[str], style: str) -> str:
    """Return the policy of a page that runs these scripts and this style, and loads nothing."""
    return (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def _json_for_script(document: Document) -> str:
    """Return the document as JSON that may stand in a `script` element (HTML standard)."""
    import msgspec

    text = msgspec.json.encode(document).decode()
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    return text


@cache
def source(name: str) -> str:
    """Return the text of a file in this package."""
    return files("gpuops.extras.web.page").joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Any:
    """Return Jinja2's environment with the filters of the page, for the templates in this package."""
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        visible=lambda text: visible(str(text)),
        minute=_minute,
        zoned_minute=format_zoned_minute,
        slots=_slots,
        hours=_hours,
        percent=_percent,
        count=count,
        duration=_duration,
    )
    return environment


def _minute(moment: str | None) -> str:
    return "-" if moment is None else format_minute(datetime.fromisoformat(moment).astimezone(UTC))


def _slots(figure: Mapping[str, int | None] | None) -> str:
    """Return `3`, `3 to 4` or `at least 3`; `-` for None."""
    if figure is None:
        return "-"
    least, most = figure["at_least"], figure["at_most"]
    if most is None:
        return f"at least {least}"
    return str(least) if least == most else f"{least} to {most}"


def _hours(figure: Mapping[str, float | None]) -> str:
    """Return `41.2`, `41.2+` if it may be more, or `unknown`."""
    exact, least = figure["gpu_hours"], figure["gpu_hours_at_least"]
    if exact is not None:
        return f"{exact:.1f}"
    return f"{least:.1f}+" if least else "unknown"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _duration(seconds: float | None) -> str:
    """Return `3 h 05 min`; `now` for None, which means that only this one reading supports it."""
    if seconds is None:
        return "now"
    return format_minutes(timedelta(minutes=seconds // 60))


_SUMMED: Final = ("hosts", "gpus", "gpus_full", "gpus_partly", "gpus_free")
"""The keys of a report's `use` that are summed over all sites."""


def sites_page(answers: Sequence[SiteAnswer]) -> str:
    """Return one page with the report of each site that answered, and a list of the other sites with the reason.

    Each answer is a document of kind `report` or a failure.
    """
    style, script = page_style(), source("sites.js")
    policy = content_security_policy((script, page_script()), style)
    documents = [(answer, answer.document) for answer in answers if answer.failure is None]
    text: str = (
        environment()
        .get_template("sites.html.j2")
        .render(
            sites=[(answer, document, page(document)) for answer, document in documents],
            total={key: sum(document["use"][key] for _, document in documents) for key in _SUMMED},
            missing=[answer for answer in answers if answer.failure is not None],
            style=style,
            script=script,
            policy=policy,
        )
    )
    return text


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One site in the table that a server keeps current."""

    site: str
    address: str
    """The address of its own page, relative to that of the table."""
    read_at: datetime | None
    """When it was last read, in its own zone; None = never."""
    trouble: str | None
    """Why it is not followed now; None = it is."""
    figures: Document | None
    """`site_figures` of its last read; None = there was none."""


def site_figures(report: Document) -> Document:
    """Return the figures of a document of kind `report` that the table shows."""
    return {
        "use": {key: report["use"][key] for key in _SUMMED},
        "nights": len(report["nights"]),
        "totals": report["totals"],
        "attention": sum(finding["severity"] != "note" for finding in report["findings"]),
    }


def overview_page(rows: Sequence[SiteRow], edition: str, documents: Sequence[str]) -> str:
    """Return the page with the table of several sites. It loads its script and style from the server.

    `edition` and `documents` are those of `served_page`.
    """
    text: str = (
        environment()
        .get_template("overview.html.j2")
        .render(
            rows=rows,
            edition=edition,
            documents=documents,
            summed=_SUMMED,
            followed=sum(row.trouble is None for row in rows),
            total={key: sum(row.figures["use"][key] for row in rows if row.figures) for key in _SUMMED},
        )
    )
    return text
