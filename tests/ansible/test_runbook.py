"""The runbook that people read and print: a page that a browser takes, rows that Markdown takes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class Page(HTMLParser):
    """Whether every element is closed in its turn, and the text of it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_runbook_is_a_page_and_a_document(ansible: Ansible, tmp_path: Path) -> None:
    lab = (ROOT / "gpuops" / "sim" / "scenarios" / "lab.yaml").read_text(encoding="utf-8")
    evil = "<script>alert(1)</script>|x"
    scenario = tmp_path / "evil.yaml"
    changed = lab.replace("{<<: *desktop, first: 4, count: 1,", f"{{<<: *desktop, name: '{evil}', count: 1,")
    scenario.write_text(changed, encoding="utf-8")
    said = [f"gpuops_sim_dir={tmp_path}/sim", f"gpuops_runbook_dir={tmp_path}", f"gpuops_sim_scenario={scenario}"]
    options = ["-i", "inventories/sim", *(word for each in said for word in ("-e", each))]
    ansible("playbook", *options, "playbooks/runbook.yml")
    ansible("playbook", *options, "playbooks/sim_stop.yml")
    page = Page()
    page.feed((tmp_path / "runbook.html").read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert "script" not in page.seen
    assert evil in page.text
    assert "equal-share, 2 ms" in page.text
    assert "not in force before a reboot of esx-01.lab" in page.text
    rows = [line for line in (tmp_path / "runbook.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert "| esx-01.lab | 0000:d8:00.0 | best-effort | equal-share, 2 ms |" in rows
    widths = [len(re.split(r"(?<!\\)\|", row)) for row in rows]
    assert set(widths) == {5, 6}, "a name with a bar in it makes no further cell"
