"""A vCenter without a returning runner is reported in the log and by a notice once a day."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuops.config.vcenter.targets import parsed_configuration
from gpuops.extras.fleet.runner.service import OverdueAlarm
from tests.execute.journal.postgres import PASSWORD, Server
from tests.execute.past.test_overdue_vcenters import CLOSED, GONE, taken_elsewhere
from tests.notify.conftest import Webhook, webhook

pytestmark = pytest.mark.long

__all__ = ["webhook"]
FILE = """
[targets.prod]
host = "vc.example.com"
notify = ["env:HOOK"]
[targets.lab]
host = "lab.example.com"
notify = ["env:HOOK"]
"""


@pytest.fixture
def said() -> list[str]:
    return []


def alarm_of(folder: Path, url: str, hook: str, messages: list[str], now: datetime) -> OverdueAlarm:
    configured = parsed_configuration(FILE, folder / "config.toml")
    return OverdueAlarm(folder / "state", url, lambda: configured, {"HOOK": hook}, messages.append, lambda: now)


@pytest.mark.long
def test_it_is_told_once_to_each_receiver(
    postgresql: Server, tmp_path: Path, webhook: Webhook, said: list[str]
) -> None:
    pytest.importorskip("apprise", reason="needs apprise: make setup")
    url, later = postgresql.database(), CLOSED + timedelta(hours=1)
    taken_elsewhere(tmp_path / "another machine", url)
    early = alarm_of(tmp_path, url, webhook.url, said, CLOSED)
    early.look()
    assert (said, webhook.calls) == ([], [])
    alarm = alarm_of(tmp_path, url, webhook.url, said, later)
    for _ in range(2):
        alarm.look()
    assert [line.partition(":")[0] for line in said] == ["overdue"]
    assert GONE in said[0] and "desk-1 not back" in said[0]
    [(_, body)] = webhook.calls
    message = json.loads(body)
    assert GONE in message["title"] + message["message"] and "gpuops rotate day" in message["message"]
    assert PASSWORD not in str(message) + str(said)
    alarm_of(tmp_path, url, webhook.url, said, later + timedelta(days=1)).look()
    assert len(webhook.calls) == 2, "on the next day again"


def test_a_database_that_is_away_is_said_once(postgresql: Server, tmp_path: Path, said: list[str]) -> None:
    url = postgresql.database()
    postgresql.cut_off()
    alarm = alarm_of(tmp_path, url, "", said, CLOSED)
    for _ in range(2):
        alarm.look()
    assert len(said) == 1 and said[0].startswith("it is unknown whether all vCenters are returned: ")
    assert PASSWORD not in said[0]
