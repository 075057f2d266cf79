"""One page for several sites: their figures in a table, and the page of each below it, all in one file; and the table
alone, for a server that keeps it current.

The page of a site is the one that `gpuops report` makes for it, in a frame with `srcdoc`. A frame inherits the Content
Security Policy of the page around it (HTML standard, "initialize a navigable's document from srcdoc"), so that the
policy of the outer page names the scripts and styles of both, and nothing else runs or loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.extras.web.page import html
from gpuops.report.document import Document
from gpuops.report.sites import SiteAnswer

_SUMMED: Final = ("hosts", "gpus", "gpus_full", "gpus_partly", "gpus_free")
"""The keys of a report's `use` that are summed over all sites."""


def sites_page(answers: Sequence[SiteAnswer]) -> str:
    """Return the page of the sites that answered with a document of kind `report`. Other sites are listed with the
    reason."""
    style, script = html.page_style(), html.source("sites.js")
    policy = html.content_security_policy((script, html.page_script()), style)
    documents = [(answer, answer.document) for answer in answers if answer.failure is None]
    text: str = (
        html.environment()
        .get_template("sites.html.j2")
        .render(
            sites=[(answer, document, html.page(document)) for answer, document in documents],
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
    """Return the table as a page whose script and style have addresses of their own. `edition` and `documents` are
    those of `html.served_page`."""
    text: str = (
        html.environment()
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
