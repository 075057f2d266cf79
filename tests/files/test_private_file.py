"""Files of our own: whole or not at all, for our eyes, and never through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuops.errors import UsageError
from gpuops.files.private_file import write_private


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("precious")
    link.symlink_to(target)
    write_private(link, "ours")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("precious", "ours", False)


def test_a_hard_link_is_replaced_too(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("precious")
    link.hardlink_to(target)
    write_private(link, "ours")
    assert (target.read_text(), link.read_text()) == ("precious", "ours")


def test_it_is_ours_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "file", "ours")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir])
def test_what_is_no_file_stays(tmp_path: Path, plant: object) -> None:
    plant(tmp_path / "file")  # type: ignore[operator]
    with pytest.raises(UsageError, match="it is not a file"):
        write_private(tmp_path / "file", "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
