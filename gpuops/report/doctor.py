"""`doctor` for people and for programs: findings by severity, each with its reason and its fix."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from gpuops.plan.doctor.examination import Examination
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.units import count
from gpuops.report.visible import visible

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def doctor_text(found: Examination) -> RenderableType:
    """A line per finding and its fix below it, worst first, and one closing line."""
    inventory = found.inventory
    gpus = sum(len(host.gpus) for host in found.hosts)
    heading = (
        f"vCenter {visible(inventory.api_version)}: {count(len(found.hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    lines = [line for finding in found.findings for line in _lines(finding)]
    return Group(Text(heading, "bold"), *lines, Text(_summary(found), "bold"))


def doctor_document(found: Examination) -> Document:
    """The findings, worst first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "doctor",
        "vcenter": found.inventory.vcenter,
        "api_version": found.inventory.api_version,
        "read_at": found.inventory.taken_at.isoformat(),
        "healthy": found.healthy,
        "findings": [
            {"severity": each.severity.value, "subject": each.subject, "reason": each.reason, "fix": each.fix}
            for each in found.findings
        ],
    }


def _lines(finding: Finding) -> tuple[Text, Text]:
    head = Text(f"{finding.severity:<8} ", _STYLES[finding.severity])
    head.append(f"{visible(finding.subject)}: {visible(finding.reason)}", "default")
    return head, Text(f"         fix: {visible(finding.fix)}", "dim")


def _summary(found: Examination) -> str:
    if not found.findings:
        return "nothing found"
    numbers = {severity: sum(each.severity is severity for each in found.findings) for severity in Severity}
    return ", ".join(count(number, severity.value) for severity, number in numbers.items() if number)
