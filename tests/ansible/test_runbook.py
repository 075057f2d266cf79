"""The runbook that people read and print: a page that a browser takes, rows that Markdown takes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from markdown_it import MarkdownIt

from gpuops.sim.core.inventory_tree import escaped
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class Page(HTMLParser):
    """Whether elements are closed in order, and their text."""

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


HOSTILE: Final = (
    "a|b",
    "x\n| forged | row | of | mine |",
    "<script>alert(1)</script>",
    "\u202egnp.exe\u2066",
    "[click](javascript:alert(1))",
    "![seen](http://example.com/seen.png)",
    "`code` *much* _more_ __most__ ~~gone~~",
    "back\\slash\\|bar",
    "&lt;b&gt;&#124;&amp;",
    "vdi_07_x\x85\u2028# heading",
)
"""Names as people may give them."""
FORGED_HOST: Final = "esx-01|<img src=x>\n\u202elab"
CELL_LEVEL: Final = 3
"""Inline text of a table lies deeper than any other."""


def printed_name(name: str) -> str:
    """The name as a page has to show it."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in name)


def tables(path: Path) -> list[list[list[str]]]:
    """The text of each cell of each row of each table in a Markdown file; no cell is more than text."""
    rows_by_table: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(path.read_text(encoding="utf-8")):
        assert token.type != "html_block"
        if token.type == "table_open":
            rows_by_table.append([])
        elif token.type == "tr_open":
            rows_by_table[-1].append([])
        elif token.type == "inline" and token.level > CELL_LEVEL:
            assert {child.type for child in token.children or ()} <= {"text", "text_special"}, token.content
            rows_by_table[-1][-1].append("".join(child.content for child in token.children or ()))
    return rows_by_table


def forged_site(folder: Path, server: SimServer) -> list[object]:
    """Options for a playbook: VMs and hosts of that vCenter are called so, and the hosts of the change are these."""
    vms: list[Any] = [vm for vm in server.world.by_type("VirtualMachine") if vm.name.startswith("vdi-")]
    for vm, name in zip(vms, HOSTILE, strict=False):
        vm.name = escaped(name)
    hosts: list[Any] = list(server.world.by_type("HostSystem"))
    hosts[0].name = escaped(FORGED_HOST)
    sim_client.write(folder / "ready.json", sim_client.of(server))
    change = {"gpu_scheduler": "equal-share", "gpu_time_slice": "2ms"}
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    variables = {
        "gpuops_hostname": f"sim@{folder}/ready.json",
        "gpuops_state_dir": str(folder / "state"),
        "gpuops_runbook_dir": str(folder),
        "gpuops_report_file": str(folder / "fleet_report.md"),
        "gpuops_window": "Sat |<b>\u202e",
    }
    planned = {
        "forged": {**change, "gpu_name": FORGED_HOST, "gpu_addresses": ["0000:d8:00.0"]},
        "nowhere": {**change, "gpu_name": "esx|<b>99"},
        "unsaid": {"gpu_name": "esx-02.lab"},
    }
    inventory = {
        "all": {
            "hosts": {"localhost": {}},
            "vars": local | variables,
            "children": {"gpu_hosts": {"hosts": planned}},
        }
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return ["-i", folder / "hosts.yml"]


def test_hostile_names_are_text_on_every_page(ansible: Ansible, tmp_path: Path) -> None:
    """And a host that has no plan stands on the page of the change window with its reason."""
    with SimServer(build("lab")) as server:
        options = forged_site(tmp_path, server)
        ansible("playbook", *options, "playbooks/fleet_report.yml")
        failed = ansible("playbook", *options, "playbooks/runbook.yml", code=2)
    assert re.search(r"^forged +: .* failed=0 ", failed.stdout, re.MULTILINE)
    assert re.search(r"^nowhere +: .* failed=1 ", failed.stdout, re.MULTILINE)
    names = {printed_name(name) for name in HOSTILE}
    gpus, vms = tables(tmp_path / "fleet_report.md")
    assert {len(row) for row in gpus} == {5}
    assert {len(row) for row in vms} == {4}
    assert names < {row[0] for row in vms}
    assert {row[0] for row in gpus} == {"Host", printed_name(FORGED_HOST), "esx-02.lab"}
    assert "nobody" in {row[4] for row in gpus}
    changes, holders = tables(tmp_path / "runbook.md")
    assert [printed_name(FORGED_HOST), "0000:d8:00.0", "best-effort", "equal-share, 2 ms"] in changes
    reasons = {row[0]: row[1] for row in changes}
    assert "esx|<b>99" in reasons["nowhere"]
    assert reasons["nowhere"].startswith("no plan: ")
    assert "gpu_scheduler" in reasons["unsaid"]
    page = Page()
    page.feed((tmp_path / "runbook.html").read_text(encoding="utf-8"))
    page.close()
    assert (page.open, {"script", "img", "b", "i"} & set(page.seen)) == ([], set())
    assert "nobody" in {row[2] for row in holders}
    for text in (printed_name(FORGED_HOST), reasons["nowhere"], reasons["unsaid"], *(row[2] for row in holders)):
        assert text in page.text
    for written in ("fleet_report.md", "runbook.md", "runbook.html"):
        content = (tmp_path / written).read_text(encoding="utf-8")
        assert all(character.isprintable() for character in content.replace("\n", "")), written
        assert "None" not in content, written


def test_the_runbook_is_a_page_and_a_document(ansible: Ansible, tmp_path: Path) -> None:
    lab = (ROOT / "gpuops" / "sim" / "scenarios" / "lab.yaml").read_text(encoding="utf-8")
    evil = "<script>alert(1)</script>|x"
    scenario = tmp_path / "evil.yaml"
    changed = lab.replace("{<<: *desktop, first: 4, count: 1,", f"{{<<: *desktop, name: '{evil}', count: 1,")
    scenario.write_text(changed, encoding="utf-8")
    variables = [f"gpuops_sim_dir={tmp_path}/sim", f"gpuops_runbook_dir={tmp_path}", f"gpuops_sim_scenario={scenario}"]
    options = ["-i", "inventories/sim", *(word for variable in variables for word in ("-e", variable))]
    ansible("playbook", *options, "playbooks/runbook.yml")
    ansible("playbook", *options, "playbooks/sim_stop.yml")
    page = Page()
    page.feed((tmp_path / "runbook.html").read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert "script" not in page.seen
    assert evil in page.text
    assert "equal-share, 2 ms" in page.text
    assert "takes effect after a reboot of esx-01.lab" in page.text
    rows = [line for line in (tmp_path / "runbook.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert "| esx-01.lab | 0000:d8:00.0 | best-effort | equal-share, 2 ms |" in rows
    widths = [len(re.split(r"(?<!\\)\|", row)) for row in rows]
    assert set(widths) == {5, 6}, "a name with a bar in it makes no further cell"
