"""The page without a browser: nothing in it can end the element that it stands in, and its policy fits its script."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from gpuops.advise.gpu_hours import showback
from gpuops.extras.web.page.fleet_report_text import FOCUS_COLUMNS, focus_csv
from gpuops.extras.web.page.html import findings_together, page
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from tests.report.page.conftest import Reported

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "</script><script>alert(3)</script>", "<!--", "]]>",
    "{{ 7 * 7 }}", "&amp;", "שלום-01", "vdi \U0001f600", "a\u202eb\u2028c", "'; alert(4) //", "=1+1",
)  # fmt: skip
"""Names that VMs, hosts and owners may have."""


def rename_all(value: Any, names: dict[str, str]) -> Any:
    """The document with each of these texts in the place of another."""
    if isinstance(value, dict):
        return {key: rename_all(child, names) for key, child in value.items()}
    if isinstance(value, list):
        return [rename_all(child, names) for child in value]
    return names.get(value, value) if isinstance(value, str) else value


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """The same report with hostile names of VMs, hosts, clusters, owners and folders."""
    texts = [vm["name"] for vm in document["vms"]] + [host["name"] for host in document["hosts"]]
    texts += [host["cluster"] for host in document["hosts"]] + [vm["path"] for vm in document["vms"]]
    texts += [owner["owner"] for owner in document["showback"]["owners"]] + ["lab-night"]
    texts += [finding_row["reason"] for finding_row in document["findings"]]
    named = {
        text: f"{HOSTILE[number % len(HOSTILE)]}-{number}" for number, text in enumerate(dict.fromkeys(texts)) if text
    }
    renamed_document: dict[str, Any] = rename_all(document, named)
    return renamed_document


class Elements(HTMLParser):
    """The tags of a page, and what stands in its script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside[-1]][-1] += data


def test_hostile_names_add_no_element_and_no_attribute(reported: Reported) -> None:
    usual, bad = Elements(page(reported.document)), Elements(page(hostile(reported.document)))
    assert [tag for tag, _ in bad.tags] == [tag for tag, _ in usual.tags]
    assert [sorted(attributes) for _, attributes in bad.tags] == [sorted(attributes) for _, attributes in usual.tags]


def test_the_page_carries_its_document_whole(reported: Reported) -> None:
    for document in (reported.document, hostile(reported.document)):
        script, _ = Elements(page(document)).texts["script"]
        assert "<" not in script
        assert json.loads(script) == document


def test_the_policy_lets_its_one_script_and_one_style_run_and_nothing_load(reported: Reported) -> None:
    elements = Elements(page(reported.document))
    [policy] = [at["content"] or "" for tag, at in elements.tags if at.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    [style], (_, script) = elements.texts["style"], elements.texts["script"]
    for directive, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives.pop(directive) == f"'sha256-{digest}'"
    assert directives == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    loads = [
        value for _, at in elements.tags for name, value in at.items() if name in ("src", "href", "action", "srcset")
    ]
    assert all((value or "").startswith(("#", "data:,")) for value in loads)
    assert not any(name == "style" or name.startswith("on") for _, at in elements.tags for name in at)
    assert not re.search(r"\b(fetch|XMLHttpRequest|innerHTML|outerHTML|insertAdjacentHTML|eval)\b", script)


def test_findings_that_differ_in_their_subject_alone_are_one() -> None:
    def finding(subject: str, reason: str) -> dict[str, str]:
        return {"severity": "warning", "subject": subject, "reason": reason, "fix": "gpuops host mode set"}

    findings = findings_together([finding("esx-1", "a"), finding("esx-2", "b"), finding("esx-3", "a")])
    assert [(row["reason"], row["subjects"]) for row in findings] == [("a", ["esx-1", "esx-3"]), ("b", ["esx-2"])]


@pytest.mark.parametrize("by_itself", [False, True])
def test_the_table_of_focus_has_a_line_for_each_run_and_no_formula(by_itself: bool) -> None:
    begins = datetime(2026, 12, 31, 20, tzinfo=UTC)
    periods = (HeldPeriod(begins, begins + timedelta(hours=8), by_itself),)
    vm = PastVm("vm-1", "uuid-1", "=cmd|' /C calc'!A0", Role.ML, ("a40-24c",), 0.5, periods, closed=True)
    night = PastNight("2026-12-31", "vc", begins, "policy", (), (vm,), ())
    [line] = csv.DictReader(io.StringIO(focus_csv(showback([night], lambda vm: "@owner"))))
    assert tuple(line) == FOCUS_COLUMNS
    assert (line["ResourceName"], line["SubAccountName"]) == ("'=cmd|' /C calc'!A0", "'@owner")
    assert (line["ConsumedQuantity"], line["ConsumedUnit"]) == ("" if by_itself else "4.0", "GPU-Hours")
    assert line["x_GpuHoursAtLeast"] == ("0.0" if by_itself else "4.0")
    assert (line["ChargePeriodStart"], line["ChargePeriodEnd"]) == ("2026-12-31T20:00:00Z", "2027-01-01T04:00:00Z")
    assert (line["BillingPeriodStart"], line["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
