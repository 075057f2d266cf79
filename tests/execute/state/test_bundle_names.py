"""The names behind the pseudonyms of bundles: none is lost or mixed up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.extras.bundle import harmless
from gpuops.extras.bundle.harmless import name_behind, save_names
from gpuops.files.private_file import write_private

KEY = b"k" * 32
GIVEN = {"vm-123456789abc": "one", "vm-999999999999": "three"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    save_names(tmp_path / "state", KEY, GIVEN)
    return tmp_path / "state"


def test_a_pseudonym_is_looked_up_complete(state: Path) -> None:
    assert name_behind(state, "vm-123456789abc") == "one"
    for text in ("vm-1234", "vm-123456789ab", ""):
        with pytest.raises(UsageError, match="is in no bundle that this user wrote"):
            name_behind(state, text)


def test_names_are_saved_with_the_key_that_made_them_or_not_at_all(state: Path) -> None:
    with pytest.raises(UsageError, match="at the same time"):
        save_names(state, b"l" * 32, {"vm-000000000000": "other"})
    assert json.loads((state / "bundle-names.json").read_text("utf-8")) == GIVEN


def test_bundles_at_the_same_time_lose_no_names(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is slow between reading and writing."""
    barrier = Barrier(2)

    def slow(path: Path, text: str) -> None:
        with suppress(BrokenBarrierError):  # where one waits for the other
            barrier.wait(0.2)
        write_private(path, text)

    monkeypatch.setattr(harmless, "write_private", slow)
    name_maps: list[Mapping[str, Any]] = [{f"host-{number:012x}": f"esx-{number}"} for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda names: save_names(state, KEY, names), name_maps))
    stored_names = json.loads((state / "bundle-names.json").read_text("utf-8"))
    assert stored_names == {**GIVEN, **name_maps[0], **name_maps[1]}
