"""The order of a change as the journal keeps it: written and read back it is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.config.date_text import parse_window
from gpuops.errors import StateDamaged
from gpuops.execute.journal.orders import (
    ChangeOrder,
    ClusterOrder,
    JournalMove,
    MovesOrder,
    dump_order,
    load_change_order,
    load_cluster_order,
)
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import Displacement, GraphicsDevice, GraphicsSettings, Rolling, VsanMode
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureMig, ConfigureModule

GPU = PciAddress.parse("0000:3b:00.0")
GRAPHICS = GraphicsSettings("shared", "performance", (GraphicsDevice(GPU, "sharedDirect", "sameSize"),))
ORDER = ChangeOrder(
    "scheduler set",
    (
        ConfigureModule("h1", "a=1", "a=2"),
        ConfigureGraphics("h2", GRAPHICS, GRAPHICS),
        ConfigureMig("h3", (GPU,), True),
    ),
    {"h1": "esx-1", "h2": "esx-2", "h3": "esx-3"},
    {"h1": (GPU,), "h2": (), "h3": (GPU,)},
    {"h1": (GPU,), "h2": ()},
    Rolling(2, parse_window("Sat 22:00-04:00 Europe/Berlin"), Displacement.POWER_OFF, VsanMode.EVACUATE),
    "lock",
)


def test_what_is_written_is_read() -> None:
    assert load_change_order(dump_order(ORDER)) == ORDER
    earlier = dump_order(ORDER).replace('"mig"', '"another"')
    assert load_change_order(earlier) == replace(ORDER, mig={}), "an earlier version did not ask"
    moves = MovesOrder((JournalMove("v", "desk", "h1", "h2", "esx-2", powered_off=True),))
    assert load_change_order(dump_order(moves)) == moves
    cluster = ClusterOrder("train", "0badcafe", ("train-00",))
    assert load_cluster_order(dump_order(cluster)) == cluster


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"format": 9}', dump_order(ORDER).replace("ConfigureMig", "Explode"), "[" * 100_000],
    ids=["nothing", "no order", "a list", "another format", "another step", "nested too deep"],
)
def test_what_this_version_cannot_read_is_damage(text: str) -> None:
    with pytest.raises(StateDamaged, match="cannot read"):
        load_change_order(text)
