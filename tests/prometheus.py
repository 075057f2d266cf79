"""What tests know of Prometheus: its judge of metrics and rules, and samples read from its text format."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

Found = dict[str, dict[frozenset[tuple[str, str]], float]]

needs_promtool: Final = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ, reason="no promtool: apt-get install prometheus"
)


def samples(text: str, *, with_vcenter: bool = False) -> Found:
    """By name, and by its labels, the value of each sample; one that is there twice fails.

    The label `vcenter` is left out unless it is asked for.
    """
    by_name: Found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset(label for label in sample.labels.items() if with_vcenter or label[0] != "vcenter")
            assert labels not in by_name.setdefault(sample.name, {}), sample
            by_name[sample.name][labels] = sample.value
    return by_name


def only(by_name: Found, name: str, **labels: str) -> float:
    """The value of one sample."""
    return by_name[name][frozenset(labels.items())]


def require_taken(text: str) -> None:
    """promtool reads the text, and has nothing to say about names, units and types."""
    judged = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, encoding="utf-8", check=False
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def promtool(*words: str | Path) -> tuple[int, str]:
    """Its exit code, and what it says."""
    judged = subprocess.run(["promtool", *map(str, words)], capture_output=True, encoding="utf-8", check=False)
    return judged.returncode, judged.stdout + judged.stderr
