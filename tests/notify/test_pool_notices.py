"""Clients of a pool that lose a lease early are told of at a receiver, once."""

from __future__ import annotations

from pathlib import Path

from gpuops.notify.watch import tell_pool
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.lending import settle, take_back
from tests.notify.conftest import Webhook
from tests.notify.test_watch import Told
from tests.report.test_pool_notice import HOUR, NOW, book


def test_a_lease_that_is_taken_back_arrives_once(tmp_path: Path, webhook: Webhook) -> None:
    told = Told(tmp_path / "state", webhook.url)
    before = book()
    after = take_back(before, "gpu-01", HOUR, NOW)
    for answer in (
        PoolAnswer("reclaim", NOW, before, before, True),
        PoolAnswer("reclaim", NOW, before, after, True),
        PoolAnswer("reclaim", NOW, before, after, True),
        PoolAnswer("reclaim", NOW, after, settle(after, NOW), True),
    ):
        tell_pool(told.way, answer)
    [(_, body)] = webhook.calls
    assert b"ds-01: lease a1 ends at 2026-11-27 19:00 UTC (server gpu-01 is taken back)" in body
