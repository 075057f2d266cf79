"""The order of a change as the journal keeps it: written and read back it is the same."""

from __future__ import annotations

import pytest

from gpuops.config.date_text import parse_window
from gpuops.errors import StateDamaged
from gpuops.execute.change.change_order import ChangeOrder, dump_order, load_order
from gpuops.execute.change.moves import JournalMove, dump_moves, load_moves
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
    assert load_order(dump_order(ORDER)) == ORDER
    assert load_order(dump_order(ORDER).replace('"mig"', '"another"')).mig == {}, "an earlier version did not ask"
    moves = (JournalMove("v", "desk", "h1", "h2", "esx-2", powered_off=True),)
    assert load_moves(dump_moves(moves)) == moves
    assert load_moves(dump_order(ORDER)) is None


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"format": 9}', dump_order(ORDER).replace("ConfigureMig", "Explode"), "[" * 100_000],
    ids=["nothing", "no order", "a list", "another format", "another step", "nested too deep"],
)
def test_what_this_version_cannot_read_is_damage(text: str) -> None:
    with pytest.raises(StateDamaged, match="cannot read"):
        load_order(text)


def test_moves_that_are_nested_too_deep_are_damage() -> None:
    with pytest.raises(StateDamaged, match="cannot read"):
        load_moves("[" * 100_000)
