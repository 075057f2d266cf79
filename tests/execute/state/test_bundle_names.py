"""The names behind the pseudonyms of bundles: none is lost, and none is told for another."""

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
from gpuops.extras.bundle import bundle_names
from gpuops.extras.bundle.bundle_names import name_behind, remember
from gpuops.files.private_file import write_private

GIVEN = {"vm-123456789abc": "one", "vm-12344444aaaa": "two", "vm-999999999999": "three"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    remember(tmp_path / "state", GIVEN)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("typed", "name"),
    [("vm-123456789abc", "one"), ("vm-12345678", "one"), ("vm-1234567", None), ("vm-12344444", "two"),
     ("vm-12344444a", "two"), ("vm-1234", None), ("vm-9", None), ("vm-123456789a", "one"), ("vm-99999999", "three"),
     ("vm-12344444aaaa", "two")],
)  # fmt: skip
def test_an_id_of_vcenter_is_no_pseudonym(typed: str, name: str | None, state: Path) -> None:
    if name is None:
        with pytest.raises(UsageError) as refused:
            name_behind(state, typed)
        assert refused.value.message == (
            f"{typed!r} is vCenter's own id of a VM, which bundles keep as it is, and no pseudonym"
        )
    else:
        assert name_behind(state, typed)[1] == name


def test_bundles_at_the_same_time_lose_no_names(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is slow between reading and writing."""
    both = Barrier(2)

    def slow(path: Path, text: str) -> None:
        with suppress(BrokenBarrierError):  # where one waits for the other
            both.wait(0.2)
        write_private(path, text)

    monkeypatch.setattr(bundle_names, "write_private", slow)
    given: list[Mapping[str, Any]] = [{f"host-{number:012x}": f"esx-{number}"} for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: remember(state, each), given))
    kept = json.loads((state / "bundle-names.json").read_text("utf-8"))
    assert kept == {**GIVEN, **given[0], **given[1]}
