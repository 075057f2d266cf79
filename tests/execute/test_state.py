"""State that somebody planted: at each path, each kind of thing is refused, and what it led to is as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute import audit
from gpuops.execute.journal import FILE_NAME, Journal
from gpuops.execute.journal.sqlite import COMPANIONS
from gpuops.execute.lock import locked

NOW = datetime(2026, 11, 20, 21, 5, tzinfo=UTC)


def journal(state: Path) -> None:
    Journal.open(state, "vc-1", lambda: NOW).close()


def lock(state: Path) -> None:
    with locked(state, "vc-1", NOW, alone=True):
        pass


def audit_log(state: Path) -> None:
    audit.append(state, "2026-11-20", "tried")


PATHS: dict[str, Callable[[Path], None]] = {
    FILE_NAME: journal,
    **{FILE_NAME + suffix: journal for suffix in COMPANIONS},
    "vc-1.lock": lock,
    audit.FILE_NAME: audit_log,
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """With a journal already in it."""
    directory = tmp_path / "state"
    journal(directory)
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What must stay as it is."""
    path = tmp_path / "target"
    path.write_text("precious")
    path.chmod(0o600)
    return path


def symlink(path: Path, target: Path) -> None:
    path.symlink_to(target)


def hardlink(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def pipe(path: Path, target: Path) -> None:
    os.mkfifo(path, 0o600)


def directory(path: Path, target: Path) -> None:
    path.mkdir(0o700)


def wide(path: Path, target: Path) -> None:
    path.touch()
    path.chmod(0o666)


def somebody_elses(path: Path, target: Path) -> None:
    """As far as a test may: we are another user by the time we look."""
    path.touch(0o600)


def of_another_user(inode: int) -> Callable[[int], os.stat_result]:
    fstat = os.fstat

    def told(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:10])) if found.st_ino == inode else found

    return told


@pytest.mark.parametrize("plant", [symlink, hardlink, pipe, directory, wide, somebody_elses])
@pytest.mark.parametrize("name", PATHS)
def test_what_was_planted_is_refused_and_its_target_untouched(
    state: Path, target: Path, name: str, plant: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state / name
    path.unlink(missing_ok=True)
    plant(path, target)
    if plant is somebody_elses:
        monkeypatch.setattr(os, "fstat", of_another_user(path.stat().st_ino))
    with pytest.raises(StateDamaged, match=name) as refused:
        PATHS[name](state)
    assert refused.value.exit_code == 7
    assert target.read_text() == "precious"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_under_no_umask_everything_is_ours_alone(tmp_path: Path) -> None:
    state = tmp_path / "home" / ".local" / "state" / "gpuops"
    for write in (journal, lock, audit_log):
        write(state)
    made = [*state.iterdir(), *(each for each in state.parents if each.is_relative_to(tmp_path / "home")), state]
    assert {path.name for path in made} >= {FILE_NAME, "vc-1.lock", audit.FILE_NAME, ".local"}
    assert [path for path in made if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []


@pytest.mark.parametrize("write", [journal, lock, audit_log])
def test_a_directory_that_anybody_could_replace_is_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StateDamaged, match="everybody can write in") as refused:
        write(open_to_all / "state" / "gpuops")
    assert refused.value.hint.startswith(f"chmod o-w {open_to_all}")
    open_to_all.chmod(0o1777)
    write(open_to_all / "state" / "gpuops")  # as /tmp is: nobody replaces what is not his
