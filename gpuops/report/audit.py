"""What an audit of the journal found, for people and for programs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Group
from rich.text import Text

from gpuops.model.audit import Audit, Chain
from gpuops.report.plan_json import SCHEMA_VERSION
from gpuops.report.visible import visible


def audit_text(audit: Audit) -> Group:
    """A line for each vCenter, and one for all of it."""
    lines = [Text(visible(_line(chain)), "red" if chain.bad else "") for chain in audit.chains]
    if audit.damage:
        lines.append(Text(visible(audit.damage), "red"))
    lines.append(Text(visible(f"{_verdict(audit)}: {audit.journal}"), "bold"))
    if not audit.whole:
        lines.append(
            Text("next: gpuops rotate day --policy FILE goes by vCenter's markers; then move the journal aside")
        )
    return Group(*lines)


def audit_document(audit: Audit) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-audit",
        "journal": audit.journal,
        "whole": audit.whole,
        "damage": audit.damage or None,
        "vcenters": [
            {
                "vcenter": chain.vcenter,
                "good_records": chain.good,
                "first_at": chain.first.isoformat() if chain.first is not None else None,
                "last_at": chain.last.isoformat() if chain.last is not None else None,
                "head": chain.head,
                "bad": chain.bad or None,
            }
            for chain in audit.chains
        ],
    }


def _line(chain: Chain) -> str:
    between = f" from {_minute(chain.first)} to {_minute(chain.last)}" if chain.first and chain.last else ""
    good = f"{chain.good:,} record{'' if chain.good == 1 else 's'}{between}"
    if chain.bad:
        return f"vCenter {chain.vcenter}: {chain.bad}; only the {good} before it can be trusted"
    return f"vCenter {chain.vcenter}: {good}, head {chain.head}"


def _verdict(audit: Audit) -> str:
    if not audit.whole:
        return "changed by something else than gpuops"
    return "as gpuops wrote it" if audit.chains else "nothing was recorded yet"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M %Z}"
