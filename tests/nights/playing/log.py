"""Log: what happened in a night, as text: the same for the same seed and commit, byte for byte."""

from __future__ import annotations

import hashlib
import json

from tests.nights.playing.played import Played


def lines(night: Played) -> list[str]:
    """The schedule, each run and its end, and every applied effect, in order of time."""
    log_lines = [f"{json.dumps(event.to_json(), default=str)}" for event in night.events]
    log_lines += [f"{at:%H:%M:%S.%f} {name}: {ended}" for name, ended, at in night.calls]
    for change in night.world.ledger:
        changes = json.dumps([change.before, change.after], sort_keys=True)
        log_lines.append(f"{change.at:%H:%M:%S.%f} {change.user} {change.method} {change.name} {changes}")
    return log_lines


def digest(night: Played) -> str:
    """A short name of the log."""
    return hashlib.sha256("\n".join(lines(night)).encode()).hexdigest()[:16]
