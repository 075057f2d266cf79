"""Files of our own and of others: written completely or not at all, private, and who could replace one."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.errors import UsageError
from gpuops.files import private_file
from gpuops.files.file import parse_json, read_bytes
from gpuops.files.private_file import readable, replaceable, way_open, write_private


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"',
        r'{"name": ["\uDFFF"]}',
        r'{"\udc00": 1}',
        r'"\ud83d \ude00"',
        '"\ud800"',
        b'"\xed\xa0\x80"',
        '"\\ud800"'.encode("utf-16"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"half of a surrogate pair|can't decode byte"):
        parse_json(text)


def test_a_pair_is_one_character() -> None:
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    assert parse_json(r'"\\ud800"') == r"\ud800"
    assert parse_json('"é"'.encode("utf-16")) == "é"


def test_a_look_is_advised_at_a_file_that_is_there_only(tmp_path: Path) -> None:
    directory = tmp_path / "there"
    directory.mkdir()
    (tmp_path / "file").touch()
    hints = []
    for path in (directory, tmp_path / "file" / "below", tmp_path / "missing", Path("a\0b")):
        with pytest.raises(UsageError) as refused:
            read_bytes(path)
        hints.append(refused.value.hint)
    assert hints == [f"look at it: ls -l {directory}", *["check the path"] * 3]


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """below/ in a directory of this user's, whose parents are safe too."""
    path = tmp_path / "between" / "below"
    path.mkdir(parents=True)
    path.chmod(0o700)
    path.parent.chmod(0o755)
    return path


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, as only root may give files away: `stat` reports another owner."""
    real: dict[str, Callable[..., os.stat_result]] = {name: getattr(os, name) for name in ("lstat", "stat")}
    inode = os.lstat(path).st_ino

    def with_other_owner(name: str) -> Callable[..., os.stat_result]:
        def stat_call(*arguments: object, **options: object) -> os.stat_result:
            stat_read = real[name](*arguments, **options)
            return os.stat_result((*stat_read[:4], 4242, *stat_read[5:10])) if stat_read.st_ino == inode else stat_read

        return stat_call

    for name in real:
        monkeypatch.setattr(os, name, with_other_owner(name))


def test_a_way_of_ones_own_is_closed(folder: Path) -> None:
    assert way_open(folder / "state") is None


def test_a_directory_of_somebody_else_on_the_way_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_away(folder.parent, monkeypatch)
    weakness = way_open(folder / "state")
    assert weakness is not None
    assert weakness.why == f"{folder.parent} belongs to another user (uid 4242)"


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o757, "everybody"), (0o775, "the group staff")])
def test_a_directory_that_others_can_write_on_the_way_is_named(
    folder: Path, mode: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_file, "_is_private", lambda gid: False)
    monkeypatch.setattr(private_file, "_group", lambda gid: "staff")
    folder.parent.chmod(mode)
    weakness = way_open(folder / "state")
    assert weakness is not None
    assert weakness.why == f"{who} can write in {folder.parent}"
    assert weakness.fix == f"chmod {'g' if 'group' in who else 'o'}-w {folder.parent}"
    folder.parent.chmod(0o1000 | mode)
    assert way_open(folder / "state") is None, "users cannot replace files of others there"


def test_a_group_that_has_no_other_member_is_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_file, "_is_private", lambda gid: True)
    folder.parent.chmod(0o775)
    assert way_open(folder / "state") is None


def test_where_a_link_leads_is_on_the_way_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("between/../between")
    (tmp_path / "absolute").symlink_to(tmp_path / "link")
    assert way_open(tmp_path / "absolute" / "below" / "state") is None
    folder.parent.chmod(0o777)
    weakness = way_open(tmp_path / "absolute" / "below" / "state")
    assert weakness is not None
    assert weakness.why == f"everybody can write in {folder.parent}"
    folder.parent.chmod(0o755)
    given_away(tmp_path / "link", monkeypatch)
    weakness = way_open(tmp_path / "absolute" / "below" / "state")
    assert weakness is not None
    assert weakness.why.startswith(f"{tmp_path / 'link'} belongs to another user")


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ELOOP))):
        way_open(tmp_path / "a" / "state")


def test_a_file_of_somebody_else_is_neither_private_nor_safe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "id"
    path.touch(0o600)
    assert (readable(path), replaceable(path)) == (None, None)
    given_away(path, monkeypatch)
    for judged in (readable, replaceable):
        weakness = judged(path)
        assert weakness is not None
        assert weakness.why == f"{path} belongs to another user (uid 4242)"


def test_where_a_link_to_a_file_leads_is_looked_at_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch(0o600)
    (tmp_path / "second").symlink_to("between/below/file")
    first = tmp_path / "first"
    first.symlink_to(tmp_path / "second")
    assert replaceable(first) is None
    folder.parent.chmod(0o777)
    weakness = replaceable(first)
    assert weakness is not None and weakness.why == f"everybody can write in {folder.parent}"
    folder.parent.chmod(0o755)
    given_away(tmp_path / "second", monkeypatch)
    weakness = replaceable(first)
    assert weakness is not None and weakness.why.startswith(f"{tmp_path / 'second'} belongs to another user")
