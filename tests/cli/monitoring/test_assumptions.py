"""`gpuops doctor --assumptions` as typed: which rules a read-only look at a vCenter contradicts, and its exit codes."""

from __future__ import annotations

import json
import re

from gpuops.catalog.catalog_files import assumptions
from gpuops.sim.scenario.deviations import deviate
from tests.cli.conftest import Lab

LIST = ("doctor", "--assumptions")


def test_the_table_says_which_rules_this_vcenter_contradicts(lab: Lab) -> None:
    holds = lab.run(*LIST, "--strict")
    assert holds.exit_code == 0
    assert re.search(r"^gpu-counter-instances +\w+ +confirmed", holds.stdout, re.MULTILINE)
    deviate(lab.server.world, ["gpu-counter-instances"])
    table = lab.run(*LIST)
    assert table.exit_code == 0
    assert re.search(r"^gpu-counter-instances +\w+ +contradicted", table.stdout, re.MULTILINE)
    assert re.search(r"^mig-mode-after-boot +\w+ +not seen", table.stdout, re.MULTILINE)
    assert lab.run(*LIST, "--strict").exit_code == 3
    document = json.loads(lab.run(*LIST, "--output", "json").stdout)
    rows = {row["id"]: row for row in document["assumptions"]}
    assert list(rows) == list(assumptions())
    assert "esx-01.lab has GPU counters with the instance gpu-0" in rows["gpu-counter-instances"]["evidence"]
    assert lab.effects == []


def test_it_is_about_the_whole_vcenter(lab: Lab) -> None:
    refused = lab.run(*LIST, "--host", "esx-01.lab")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "it excludes --host, --cluster, --roles and --policy" in refused.stderr
