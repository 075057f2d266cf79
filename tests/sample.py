"""Which of many cases a test tries: of combinations `make test` a few, `make long` the others; of very many a part.

Plugin: of a test that is marked `sampled(N)`, `make test` runs one in N of its cases, which are drawn with the moment
and the zone of the run (`--surroundings SEED` draws the same), and `make long` all, or one in M: `sampled(N, long=M)`;
of `sampled(long=M)` `make test` runs none. So are the tests below the paths in STORIES, as if each path were one test
and they were its cases, and the other tests of hypothesis, one in PROPERTIES of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeVar

import pytest
from hypothesis import is_hypothesis_test

from tests.surroundings.plugin import HERE

Case = TypeVar("Case")
STORIES: Final = {
    "tests/advise/diagnosis/test_model.py": 6,
    "tests/advise/sizing/": 6,
    "tests/advise/test_forecast.py": 8,
    "tests/advise/test_made_weeks.py": 8,
    "tests/ansible/test_inventory.py": 4,
    "tests/ansible/test_pools.py": 6,
    "tests/bench/": 6,
    "tests/broker/": 4,
    "tests/cli/advice/": 12,
    "tests/cli/first_steps/test_bundle.py": 6,
    "tests/cli/first_steps/test_login.py": 6,
    "tests/cli/hosts/": 6,
    "tests/cli/monitoring/": 8,
    "tests/cli/nights/": 8,
    "tests/cli/services/": 8,
    "tests/cli/sites/": 10,
    "tests/cli/test_app.py": 4,
    "tests/cli/test_bad_input.py": 4,
    "tests/cli/test_hostile_names.py": 6,
    "tests/cli/test_interrupted.py": 10,
    "tests/cli/test_old_vcenter.py": 8,
    "tests/cli/vms/": 6,
    "tests/cli/workloads/": 10,
    "tests/config/test_hostile_files.py": 3,
    "tests/execute/jobs/test_before_return.py": 5,
    "tests/execute/jobs/test_job_run.py": 3,
    "tests/execute/journal/test_damage.py": 6,
    "tests/execute/journal/test_store.py": 3,
    "tests/execute/journal/test_two_machines.py": 6,
    "tests/execute/journal/test_upgrading.py": 6,
    "tests/execute/lease/": 3,
    "tests/execute/past/": 4,
    "tests/execute/test_assignments.py": 3,
    "tests/hostshell/": 4,
    "tests/kills/": 10,
    "tests/nights/": 12,
    "tests/notify/test_watch.py": 8,
    "tests/plan/across/": 3,
    "tests/plan/guest/test_smi.py": 3,
    "tests/plan/jobs/test_guest_scripts.py": 4,
    "tests/plan/moving/": 8,
    "tests/plan/placement/test_keep_free.py": 8,
    "tests/plan/placement/test_reserved_": 6,
    "tests/plan/queue/batch/": 6,
    "tests/plan/queue/test_reasons.py": 8,
    "tests/plan/test_other_devices.py": 6,
    "tests/plan/what_if/test_properties.py": 10,
    "tests/report/page/": 8,
    "tests/runner/": 8,
    "tests/sim/": 6,
    "tests/tasks/": 8,
    "tests/web/": 8,
    "tests/wire/": 24,
}
"""In the files below these paths most tests start a simulated vCenter, processes or a browser and play a story, or try
a rule on many fleets: many tenths of a second, some seconds. `make test` tries one in so many of those below a path,
and at least one; whoever changes what they are about types `pytest PATH`, which runs all of them. What has to be in
every run has a mark of its own there, `sampled(1)` where it is one case: that a killed night loses no desktop, that
none is suspended which a night may not take, that no password is told (`IN_EACH_RUN` in `tests/test_sample.py`)."""

PROPERTIES: Final = 8
"""Each test of hypothesis tries a hundred examples: `make test` tries one in so many of those tests, each with all its
examples. Those that must not break unseen have a mark of their own, as above."""


def mostly_long(combinations: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The parameters of a test: all of these combinations, of which those not among `quick` are marked `long`."""
    every = list(combinations)
    assert all(each in every for each in quick), "each quick one is one of them"
    return [each if each in quick else _long(each) for each in every]


def drawn_seed(of: str) -> int:
    """A seed for what is called so, by that of the run: `--surroundings SEED` draws the same. To be asked in a test."""
    return Random(f"{os.environ['SURROUNDINGS_SEED']}:{of}").randrange(1 << 30)


def every_nth(cases: Sequence[Case], nth: int) -> Sequence[Case]:
    """Every so many-th of these, from a drawn one on: a few runs try all of them, and each of them is quick.

    To be asked in a test: each draws for itself, with the seed of the run (`--surroundings SEED` draws the same).
    """
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    first = Random(f"{os.environ['SURROUNDINGS_SEED']}:{test}").randrange(nth)
    print(f"one in {nth} of {len(cases)} cases, from number {first + 1} on")
    return cases[first::nth]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is not drawn as `long`, before pytest leaves out what `-m` does; without `-m` every case runs."""
    chosen = str(config.option.markexpr)
    if "long" not in chosen:
        return
    seed, draws = config.stash[HERE].seed, dict[tuple[str, int, int], list[pytest.Item]]()
    files = {item.nodeid.partition("::")[0] for item in items}
    stories = {file: path for file in files for path in STORIES if file.startswith(path)}
    for item in items:
        draw = _draw_of(item, stories)
        if draw is not None and not item.get_closest_marker("long"):
            draws.setdefault(draw, []).append(item)
    for (marked, in_quick, in_long), cases in draws.items():
        # Whatever is drawn, as many as ever: `--part` counts on it.
        shuffled = Random(f"{seed}:{marked}").sample(cases, len(cases))
        of_quick = max(1, len(cases) // in_quick) if in_quick else 0
        of_long = max(1, len(cases) // in_long)
        for item in shuffled[of_quick:] if "not long" in chosen else shuffled[:of_long]:
            item.add_marker(pytest.mark.long)


def _draw_of(item: pytest.Item, stories: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Whose case this is, and which part of them `make test` (0: none) and `make long` try. Marks go before the paths
    of STORIES; `stories` has that of each file below one."""
    marker = item.get_closest_marker("sampled")
    if marker is not None:
        return item.nodeid.partition("[")[0], marker.args[0] if marker.args else 0, marker.kwargs.get("long", 1)
    path = stories.get(item.nodeid.partition("::")[0])
    if path is not None:
        return path, STORIES[path], 1
    return ("properties", PROPERTIES, 1) if is_hypothesis_test(getattr(item, "obj", None)) else None


def _long(combination: Any) -> Any:
    values = combination if isinstance(combination, tuple) else (combination,)
    return pytest.param(*values, marks=pytest.mark.long)
