"""Modules of community.vmware and vmware.vmware, as `ansible_calls.yaml` asks them, on the default clock.

No module may crash, and each failure is explained by a rule.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.sim.server import start
from tests.peers.conftest import _endpoint
from tests.peers.plays import PEER, ROOT, environment

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PEER.binaries.exists() and "CI" not in os.environ, reason="no community.vmware: type `make collections`"
    ),
]

TABLE = Path(__file__).with_name("ansible_calls.yaml")
WORDS = {"gives", "refused", "rule"}


def test_every_module_does_what_the_table_says(tmp_path: Path) -> None:
    groups = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    assert sum(map(len, groups.values())) > 100
    with ThreadPoolExecutor(len(groups)) as at_once:
        wrong = at_once.map(lambda name: _problems(groups[name], tmp_path), groups)
    assert [problem for problems in wrong for problem in problems] == []


def test_the_table_explains_every_failure() -> None:
    for calls in yaml.safe_load(TABLE.read_text(encoding="utf-8")).values():
        for call in calls:
            assert set(call) - {_module(call)} in ({"gives"}, {"refused", "rule"}), call
            assert all(call[word] for word in ("refused", "rule") if word in call), call


def _module(call: dict[str, Any]) -> str:
    [name] = set(call) - WORDS
    return name


def _problems(calls: list[dict[str, Any]], home: Path) -> list[str]:
    """What is wrong with the calls of a group, made one after the other of a simulated vCenter of its own."""
    with start("lab") as server:
        completed = subprocess.run(
            [PEER.binaries / "python", Path(__file__).with_name("modules.py")],
            cwd=ROOT,
            env=environment(_endpoint(server), home, PEER.binaries),
            input=json.dumps([(_module(call), call[_module(call)]) for call in calls]),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        bugs = list(server.world.bugs)
    if completed.returncode:
        return [completed.stderr]
    results = json.loads(completed.stdout)
    problems = [
        f"{_module(call)} {call[_module(call)]}: {problem}"
        for call, result in zip(calls, results, strict=True)
        if (problem := _problem(call, result))
    ]
    return [*problems, *bugs]


def _problem(call: dict[str, Any], result: dict[str, Any]) -> str:
    """What is wrong with a result, or nothing."""
    message = str(result.get("msg"))
    if "refused" in call:
        return "" if result.get("failed") and call["refused"] in message else f"not refused so: {result}"
    if result.get("failed"):
        return f"failed: {message}"
    return _missing(call["gives"], result)


def _missing(expected: Any, actual: Any) -> str:
    """The first part of what is wanted that is not there, and what is; empty when all is there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        parts = [key if key not in actual else _missing(expected[key], actual[key]) for key in expected]
        return next(filter(None, parts), "")
    if isinstance(expected, list) and expected and isinstance(actual, list):
        return next(
            (f"{element} not in {actual}" for element in expected if all(_missing(element, item) for item in actual)),
            "",
        )
    return "" if expected == actual else f"{actual!r}, not {expected!r}"
