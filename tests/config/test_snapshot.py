"""Saved inventories: read back they equal what was saved, and what is wrong with a file is said in one line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.config import snapshot
from gpuops.errors import UsageError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

EMPTY = Inventory("uuid", "8.0.3.0", datetime(2026, 11, 2, 18, 0, tzinfo=UTC))
# Every field of the model takes part: hypothesis builds the dataclasses from their annotations.
st.register_type_strategy(datetime, st.datetimes(timezones=st.just(UTC)))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))  # what a number of vCenter can hold
st.register_type_strategy(float, st.floats(allow_nan=False))


def _dictionaries(mapping: type) -> st.SearchStrategy[dict[Any, Any]]:
    key, value = get_args(mapping)
    return st.dictionaries(st.from_type(key), st.from_type(value), max_size=3)


st.register_type_strategy(Mapping, _dictionaries)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(inventory=st.from_type(Inventory))
def test_read_back_it_equals_what_was_saved(tmp_path_factory: pytest.TempPathFactory, inventory: Inventory) -> None:
    path = tmp_path_factory.mktemp("saved") / "inventory.json"
    snapshot.save(inventory, path)
    assert snapshot.load(path) == inventory


def test_one_that_was_saved_before_a_property_was_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.json"
    snapshot.save(replace(EMPTY, vms={"vm-1": Vm("vm-1", "vdi-01", suspended_at=EMPTY.taken_at)}), path)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["inventory"]["vms"]["vm-1"]["suspended_at"]
    path.write_text(json.dumps(document))
    assert snapshot.load(path).vms == {"vm-1": Vm("vm-1", "vdi-01")}


def test_the_file_is_versioned_and_private(tmp_path: Path) -> None:
    path = tmp_path / "inventory.json"
    snapshot.save(EMPTY, path)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["schema_version"], document["kind"]) == (1, "snapshot")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "directory", "link to a pipe"])
def test_what_is_no_file_stays_what_it_is(tmp_path: Path, kind: str) -> None:
    """Run by root, a rename would put a file in the place of /dev/null, for everybody."""
    path = tmp_path / "there"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    if kind == "link to a pipe":
        path.rename(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    before = path.lstat()
    with pytest.raises(UsageError, match="is not a file"):
        snapshot.save(EMPTY, path)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    path = tmp_path / "inventory.json"
    path.symlink_to(victim)
    snapshot.save(EMPTY, path)
    assert victim.read_text(encoding="utf-8") == "precious"
    assert snapshot.load(path) == EMPTY


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        snapshot.save(EMPTY, tmp_path / "none" / "inventory.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("", "is not a saved inventory"),
        ("[]", "is not a saved inventory"),
        ('{"kind": "inventory", "schema_version": 1}', "is not a saved inventory"),
        ('{"kind": "snapshot", "schema_version": 2, "gpuops": "9.0"}', "version 2"),
        ('{"kind": "snapshot", "schema_version": 1, "inventory": {"vcenter": "x"}}', "api_version"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "inventory.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        snapshot.load(path)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
