"""Workloads that share GPUs are read as they are meant, or refused in one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.decoding import keys_of
from gpuops.config.requests_file import load_workloads, parse_workloads, share_of
from gpuops.errors import UsageError
from gpuops.model.devices.shared_gpu import ObservedPair, SharingWorkload

TEMPLATE = Path(__file__).parents[2] / "templates" / "workloads.yaml"


def text(workloads: str, pairs: str = "[]") -> str:
    return f"version: 1\nworkloads: {workloads}\npairs: {pairs}\n"


def test_the_template_is_valid_and_shows_every_key() -> None:
    sharing = load_workloads(TEMPLATE)
    assert sharing.workloads[0] == SharingWorkload("training", 0.7, 4)
    assert sharing.pairs[0] == ObservedPair(("training", "inference"), (0.88, 0.72))
    words = TEMPLATE.read_text(encoding="utf-8")
    assert [key for kind in (SharingWorkload, ObservedPair) for key in keys_of(kind) if f"{key}:" not in words] == []


def test_a_share_may_be_a_percentage_if_all_are() -> None:
    sharing = parse_workloads(text("[{name: a, busy: 70%}]", '[{between: [a, a], speeds: ["50%", "62.5 %"]}]'), "w")
    assert (sharing.workloads[0].busy, sharing.pairs[0].speeds) == (0.7, (0.5, 0.625))


@pytest.mark.parametrize(
    ("share_text", "share"), [("0.7", 0.7), ("70%", 0.7), (" 70 % ", 0.7), ("1", 1.0), ("1e-3", 0.001)]
)
def test_one_share(share_text: str, share: float) -> None:
    assert share_of(share_text, "--busy") == share


@pytest.mark.parametrize("share_text", ["0", "70", "-1", "x", "", "nan", "inf", "101%", "0%", "1.5"])
def test_what_is_no_share(share_text: str) -> None:
    with pytest.raises(UsageError, match=r"^--busy "):
        share_of(share_text, "--busy")
