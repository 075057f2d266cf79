"""Rolling: how a task's hosts are rebooted for what it sets, and the window outside of which it sets nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import Refused, UsageError

if TYPE_CHECKING:
    from gpuops.model.rolling import Rolling
    from gpuops.plan.hosts.change.report import ChangeReport
    from gpuops.report.plan_json import Document

OPTIONS: Final = ("reboot", "max_hosts", "window", "vms", "vsan_mode")
"""What a task says of it, beside the fields of its request."""


def rolling_of(options: Mapping[str, Any]) -> Rolling | None:
    """How hosts are rebooted; None = they are not. Raises UsageError for what means nothing then."""
    from gpuops.model.rolling import Displacement, Rolling, VsanMode

    given = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if given.pop("reboot", None) is None:
        stray = next((name for name in given if name != "window"), None)
        if stray is not None:
            raise UsageError(f"{stray} is of reboot=rolling", hint="say both, or neither")
        return None
    if given.get("max_hosts", 1) < 1:
        raise UsageError(f"max_hosts {given['max_hosts']} means nothing here", hint="it is 1 or more")
    words = {"vms": Displacement, "vsan_mode": VsanMode}
    said = {name: words[name](value) if name in words else value for name, value in given.items()}
    return Rolling(**{**said, "window": _window(options)} if "window" in said else said)


def must_be_open(options: Mapping[str, Any], now: datetime) -> None:
    """Raises Refused while the task's window is closed, UsageError for text that is none."""
    from gpuops.model.rolling import Rolling
    from gpuops.plan.hosts.change.roll import shut

    if options.get("window") is None:
        return
    for closed in shut(Rolling(window=_window(options)), now):
        raise Refused(str(closed), hint=closed.hint)


def rolled(report: ChangeReport) -> tuple[Document, list[str]]:
    """What a rolling change returns beside its diff and its reasons: the same keys as one without reboots."""
    from gpuops.report.change import change_document

    result: Document = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(report.afterwards),
        "plan": change_document(report),
    }
    return result, list(report.plan.warnings)


def _window(options: Mapping[str, Any]) -> Any:
    from gpuops.config.date_text import parse_window

    return parse_window(options["window"])
