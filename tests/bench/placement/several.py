"""Fleets that fill with VMs that have several GPUs, measured as `filling.py` measures those with one."""

from __future__ import annotations

from tests.bench.placement.filling import measure_fleets
from tests.bench.placement.filling_fleet import SEVERAL
from tests.bench.verdict import Result


def run() -> Result:
    """Per kind of fleet; judged: that no rule with the same knowledge is better beyond doubt."""
    return measure_fleets("fleets that fill with VMs that have several GPUs", SEVERAL)
