"""Names and counts of a scenario that comes from a stranger: no name takes memory, and what is wrong has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import PolicyError
from gpuops.sim.scenario.declared import expand_name
from gpuops.sim.scenario.scenario_file import read

LAB = Path("gpuops/sim/scenarios/lab.yaml").read_text(encoding="utf-8")
BRACES = "has braces, and not as in {} or {:03}"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("ml", "ml"),
        ("ml-{}", "ml-7"),
        ("ml-{:03}.lab", "ml-007.lab"),
        ("{:2}-{:01}", "07-7"),
        ("ml-{:>400000000}", "ml-{:>400000000}"),
    ],
)
def test_a_name_has_its_number(pattern: str, name: str) -> None:
    assert expand_name(pattern, 7) == name


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ('name: "vdi-{:02}"', 'name: "v{:>400000000}"', f"vms.0.name: 'v{{:>400000000}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "v{:0400000000}"', f"vms.0.name: 'v{{:0400000000}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "v{"', f"vms.0.name: 'v{{' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{0.__class__}"', f"vms.0.name: '{{0.__class__}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{1}"', f"vms.0.name: '{{1}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{x}"', f"vms.0.name: '{{x}}' {BRACES}"),
        ('name: "vdi-{:02}"', f'name: "{"v" * 256}"', "vms.0.name: has more than 255 characters"),
        ("name: esx-01.lab", 'name: "{:s}"', f"clusters.0.hosts.0.name: '{{:s}}' {BRACES}"),
        ("name: lab-cluster", 'name: "{!r}"', f"clusters.0.name: '{{!r}}' {BRACES}"),
        ("count: 2,", "count: vms,", "vms.0.count: there is no parameter 'vms'"),
        ("count: 2,", "count: {percent: 5, of: vms},", "vms.0.count: there is no parameter 'vms'"),
        (
            "name: esx-01.lab",
            "name: esx-01.lab\n        count: n",
            "clusters.0.hosts.0.count: there is no parameter 'n'",
        ),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, line: str, changed: str, message: str) -> None:
    assert line in LAB
    path = tmp_path / "own.yaml"
    path.write_text(LAB.replace(line, changed, 1), encoding="utf-8")
    with pytest.raises(PolicyError) as refused:
        read(str(path))
    assert refused.value.message == f"scenario {path}: {message}"
