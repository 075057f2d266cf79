"""Workloads that share GPUs are read as they are meant, or refused in one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.decoding import keys_of
from gpuops.config.workloads_file import load_workloads, parse_workloads, share_of
from gpuops.errors import PolicyError, UsageError
from gpuops.model.devices.shared_gpu import ObservedPair, SharingWorkload

TEMPLATE = Path(__file__).parents[2] / "templates" / "workloads.yaml"


def text(workloads: str, pairs: str = "[]") -> str:
    return f"version: 1\nworkloads: {workloads}\npairs: {pairs}\n"


def test_the_template_is_valid_and_shows_every_key() -> None:
    found = load_workloads(TEMPLATE)
    assert found.workloads[0] == SharingWorkload("training", 0.7, 4)
    assert found.pairs[0] == ObservedPair(("training", "inference"), (0.88, 0.72))
    words = TEMPLATE.read_text(encoding="utf-8")
    assert [key for kind in (SharingWorkload, ObservedPair) for key in keys_of(kind) if f"{key}:" not in words] == []


def test_a_share_may_be_a_percentage_if_all_are() -> None:
    found = parse_workloads(text("[{name: a, busy: 70%}]", '[{between: [a, a], speeds: ["50%", "62.5 %"]}]'), "w")
    assert (found.workloads[0].busy, found.pairs[0].speeds) == (0.7, (0.5, 0.625))


@pytest.mark.parametrize(
    ("workloads", "pairs", "said"),
    [
        (
            "[{name: a, busy: 70}]",
            "[]",
            "w: workloads.0.busy: is above 1: a share is written as 0.7, or",
        ),
        ("[{name: a, busy: 0}]", "[]", "w: workloads.0.busy: should be more than 0 and 1 or less"),
        ("[{name: a, busy: -0.1}]", "[]", "w: workloads.0.busy: should be more than 0 and 1 or less"),
        ("[{name: a, busy: 170%}]", "[]", "w: workloads.0.busy: should be more than 0 and 1 or less"),
        ("[{name: a, busy: .nan}]", "[]", "w: workloads.0.busy: is not a share: write it as 0.7, or as 70%"),
        ("[{name: a, busy: true}]", "[]", "w: workloads.0.busy: is not a share: write it as 0.7, or as 70%"),
        ("[{name: a, busy: half}]", "[]", "w: workloads.0.busy: is not a share: write it as 0.7, or as 70%"),
        ("[{name: a, busy: 0.7}, {name: b, busy: 70%}]", "[]", "w: has mixed units"),
        ("[{name: a, busy: 0.7}]", '[{between: [a, a], speeds: ["50%", "50%"]}]', "w: has mixed units"),
        ("[{name: a, busy: 0.7}, {name: a, busy: 0.2}]", "[]", "w: the workload 'a' is listed twice"),
        (
            "[{name: a, busy: 0.7}]",
            "[{between: [a, b], speeds: [1, 1]}]",
            "w: a pair names 'b', which is not a",
        ),
        ("[{name: a, busy: 0.7, counts: 2}]", "[]", "w: workloads.0.counts: unknown key"),
        ("[{name: a, busy: 0.7}]", "[{between: [a, a], speeds: [2, 1]}]", "w: pairs.0.speeds.0: is above 1"),
        ("[]", "[]", "w: workloads: should not be an empty list"),
        (
            "[" + ", ".join(f"{{name: a{at}, busy: 0.1, count: 1000}}" for at in range(6)) + "]",
            "[]",
            "w: has 6000 VMs in total; at most 5000 are allowed",
        ),
    ],
)
def test_what_is_wrong_is_said(workloads: str, pairs: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_workloads(text(workloads, pairs), "w")
    assert error.value.message.startswith(said)
    assert "\n" not in error.value.line


@pytest.mark.parametrize(("given", "share"), [("0.7", 0.7), ("70%", 0.7), (" 70 % ", 0.7), ("1", 1.0), ("1e-3", 0.001)])
def test_one_share(given: str, share: float) -> None:
    assert share_of(given, "--busy") == share


@pytest.mark.parametrize("given", ["0", "70", "-1", "x", "", "nan", "inf", "101%", "0%", "1.5"])
def test_what_is_no_share(given: str) -> None:
    with pytest.raises(UsageError, match=r"^--busy "):
        share_of(given, "--busy")
