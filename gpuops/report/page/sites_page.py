"""One page for several sites: their figures in a table, and the page of each below it, all in one file.

The page of a site is the one that `gpuops report` makes of it alone, in a frame that the file holds itself (`srcdoc`).
A frame takes over the Content Security Policy of the page around it (HTML standard, "initialize a navigable's document
from srcdoc"), so that page names script and style of both, and nothing else runs or loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuops.report.page import html
from gpuops.report.sites import SiteAnswer

_SUMMED: Final = ("hosts", "gpus", "gpus_full", "gpus_partly", "gpus_free")
"""Of a report's `use`, what all sites together come to."""


def sites_page(answers: Sequence[SiteAnswer]) -> str:
    """The page of the sites that answered with a document of kind `report`; the others are named with their reason."""
    style, script = html.page_style(), html.source("sites.js")
    policy = html.content_security_policy((script, html.page_script()), style)
    documents = [(each, each.document) for each in answers if each.failure is None]
    text: str = (
        html.environment()
        .get_template("sites.html.j2")
        .render(
            sites=[(each, document, html.page(document)) for each, document in documents],
            total={key: sum(document["use"][key] for _, document in documents) for key in _SUMMED},
            missing=[each for each in answers if each.failure is not None],
            style=style,
            script=script,
            policy=policy,
        )
    )
    return text
