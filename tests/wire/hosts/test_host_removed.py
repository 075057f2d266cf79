"""A host that is taken out of vCenter while a change is at it: the change ends with one line in each output format."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.report.hosts.change_view import ChangeDocument, change_text
from gpuops.tasks.changes import change_result
from gpuops.vsphere.writing.host_changes import HostConnection
from tests.sample import mostly_long
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.leaving import remove_host
from tests.wire.hosts.rolling import EQUAL, ONE, Bench, Start

pytestmark = pytest.mark.long


class Telling(list[str]):
    """What a change tells; at one of its lines something happens."""

    def __init__(self, line: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._line, self._then = line, then

    def append(self, line: str, /) -> None:
        super().append(line)
        if self._line in line:
            self._line = "once alone"
            self._then()


def bench_of(start: Start) -> Bench:
    return start(cluster(2, [desktops(1, 1, first=1)]))


def taken_out(bench: Bench) -> None:
    with bench.world.lock:
        remove_host(bench.host("esx-01"))


def require_a_line(report: ChangeReport) -> None:
    assert report.exit_code == 4
    [reason] = [outcome.reason for outcome in report.outcomes if "is gone from vCenter" in outcome.reason]
    assert reason
    ChangeDocument.made_of(report)
    change_text(report)
    answer = change_result(report, [])
    assert answer.exit_code == 4
    assert {host_diff["before_header"] for host_diff in answer.result["diff"]} <= {"esx-01", "esx-02"}


LINES = list(product((ONE, EQUAL), ("VMs leave", "enters maintenance mode", "reboots")))


@pytest.mark.parametrize(("request_", "line"), mostly_long(LINES, [LINES[2], *LINES[3:5]]))
def test_at_each_line_that_the_change_says(start: Start, line: str, request_: Any) -> None:
    bench = bench_of(start)
    bench.told = Telling(line, lambda: taken_out(bench))
    require_a_line(bench.roll(request_))


@pytest.mark.parametrize("method", ["EnterMaintenanceMode_Task", "RebootHost_Task"])
def test_with_the_reply_of_what_was_sent(start: Start, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The reply is lost, and the host is gone when it is looked for: nothing is sent to it again."""
    bench = bench_of(start)
    submit = HostConnection.submit
    sent: list[str] = []

    def lose_reply(self: HostConnection, step: Any, inventory: Any, op_id: str) -> Any:
        from gpuops.errors import OutcomeUnknown

        task = submit(self, step, inventory, op_id)
        if method.startswith(type(step).__name__.removesuffix("Maintenance").removesuffix("Host")):
            sent.append(step.host)
            if len(sent) == 1:
                taken_out(bench)
                raise OutcomeUnknown("the reply was lost")
        return task

    monkeypatch.setattr(HostConnection, "submit", lose_reply)
    require_a_line(bench.roll(ONE))
    assert len(sent) == 1


@pytest.mark.parametrize("request_", [ONE, EQUAL], ids=["alone", "beside one that still boots"])
def test_while_it_boots_is_seen_at_once(start: Start, monkeypatch: pytest.MonkeyPatch, request_: Any) -> None:
    """A booting host is waited for up to an hour; a removed host is not waited for."""
    bench = start(cluster(2, []))
    wait, waits = HostConnection.wait_for_boot, list[frozenset[str]]()

    def wait_once(self: HostConnection, since: Any, timeout_s: float) -> frozenset[str]:
        waits.append(wait(self, since, timeout_s))
        return waits[-1]

    def out_soon() -> None:
        with bench.world.lock:
            bench.world.clock.schedule(200, lambda: taken_out(bench))

    monkeypatch.setattr(HostConnection, "wait_for_boot", wait_once)
    bench.told = Telling("reboots", out_soon)
    require_a_line(bench.roll(request_, max_hosts=2))
    assert len(waits) < 6, "one in five minutes (`start`), and a boot takes ten"


def test_one_that_is_gone_is_named_when_the_change_is_gone_on_with(start: Start) -> None:
    bench = bench_of(start)
    bench.told = Telling("reboots", lambda: taken_out(bench))
    require_a_line(bench.roll(ONE))
    report = bench.resume()
    assert [outcome.host.name for outcome in ChangeDocument.made_of(report).outcomes] == ["esx-01"]
