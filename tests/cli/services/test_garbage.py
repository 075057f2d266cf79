"""Each service frees unreachable cycles as often as Python does by default; commands that end soon do it rarely."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gpuops import api
from gpuops.cli.app import NEW_OBJECTS_BEFORE_COLLECTION
from gpuops.console.signals import SERVICE_THRESHOLDS
from gpuops.extras.observe import observing
from gpuops.extras.web import metrics_source
from gpuops.extras.web.http import current
from tests.cli.conftest import Lab

SERVICES = {
    "serve": ["serve", "--listen", "127.0.0.1:0"],
    "metrics": ["metrics", "--listen", "127.0.0.1:0"],
    "observe": ["observe"],
    "watch": ["rotate", "watch", "--policy", "templates/spare-policy.yaml"],
}


@pytest.fixture(autouse=True)
def as_in_a_command() -> Iterator[None]:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(NEW_OBJECTS_BEFORE_COLLECTION)
    yield
    gc.set_threshold(*before)
    if not frozen:
        gc.unfreeze()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_collects_garbage_often(lab: Lab, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds: list[tuple[int, ...]] = []

    def run_for_months(*arguments: Any, **options: Any) -> None:
        thresholds.append(gc.get_threshold())
        raise SystemExit(0)

    monkeypatch.setattr(observing, "observe_for_ever", run_for_months)
    monkeypatch.setattr(api, "rotate_watch", run_for_months)
    monkeypatch.setattr(current.FleetFollower, "run", run_for_months)
    monkeypatch.setattr(metrics_source.RequestedPage, "wait_until_asked", run_for_months)
    result = lab.run(*SERVICES[service])
    assert (result.exit_code, thresholds) == (0, [SERVICE_THRESHOLDS]), result.output


def test_another_command_does_so_rarely(lab: Lab) -> None:
    assert lab.run("inventory").exit_code == 0
    assert gc.get_threshold()[0] == NEW_OBJECTS_BEFORE_COLLECTION
