"""State that somebody planted: at each path, each kind of thing is refused, and what it led to is as it was."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, StateDamaged
from gpuops.execute.journal import FILE_NAME, Journal
from gpuops.execute.journal.stores import COMPANIONS
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.state.lock import locked, locked_to_return
from gpuops.execute.state.state_dir import FILE_NAME as AUDIT_FILE
from gpuops.execute.state.state_dir import append, private_file
from gpuops.model.vcenter.vm import PowerState
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import SmallVcenter, _vm, small_world

NOW = datetime(2026, 11, 20, 21, 5, tzinfo=UTC)


def journal(state: Path) -> None:
    Journal.open(state, "vc-1", lambda: NOW).close()


def lock(state: Path) -> None:
    with locked(state, "vc-1", NOW, alone=True):
        pass


def audit_log(state: Path) -> None:
    append(state, "2026-11-20", "tried")


PATHS: dict[str, Callable[[Path], None]] = {
    FILE_NAME: journal,
    **{FILE_NAME + suffix: journal for suffix in COMPANIONS},
    "vc-1.lock": lock,
    AUDIT_FILE: audit_log,
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

    def stat_of(descriptor: int) -> os.stat_result:
        stat_read = fstat(descriptor)
        return (
            os.stat_result((*stat_read[:4], stat_read.st_uid + 1, *stat_read[5:10]))
            if stat_read.st_ino == inode
            else stat_read
        )

    return stat_of


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


def file_of_the_lock(state: Path, mocker: MockerFixture) -> None:
    (state / "vc-uuid.lock").chmod(0o644)


def file_of_the_lease(state: Path, mocker: MockerFixture) -> None:
    (state / "vc-uuid-gpuops-lock.lease").chmod(0o644)


def whole_directory(state: Path, mocker: MockerFixture) -> None:
    state.chmod(0o777)


def without_locks(state: Path, mocker: MockerFixture) -> None:
    """A network file system that has no lock server."""
    mocker.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available"))


def read_only(state: Path, mocker: MockerFixture) -> None:
    _refuse(mocker, os.O_WRONLY | os.O_RDWR | os.O_CREAT, OSError(errno.EROFS, "Read-only file system"))


def full(state: Path, mocker: MockerFixture) -> None:
    """There is not even room for a new, empty file."""
    for path in state.iterdir():
        path.unlink()
    _refuse(mocker, os.O_CREAT, OSError(errno.ENOSPC, "No space left on device"))


def _refuse(mocker: MockerFixture, flags: int, error: OSError) -> None:
    real = os.open

    def opened(path: Path, open_flags: int, *arguments: int) -> int:
        if open_flags & flags:
            raise error
        return real(path, open_flags, *arguments)

    mocker.patch("os.open", opened)


@pytest.mark.parametrize(
    ("befalls", "exit_code"),
    [
        (file_of_the_lock, 7),
        (file_of_the_lease, 0),
        (whole_directory, 7),
        (without_locks, 7),
        (read_only, 7),
        (full, 7),
    ],
)
def test_no_desktop_stays_away_for_what_befalls_the_state_directory(
    tmp_path: Path, mocker: MockerFixture, befalls: Callable[[Path, MockerFixture], None], exit_code: int
) -> None:
    """A night takes nothing then, and says why in one line; a return goes on, and says what is wrong."""
    state, world = tmp_path / "state", small_world()
    world.vms["vm-99"] = _vm("vm-99", "gpuops-lock", "ops", "", "host-2", PowerState.OFF)
    site = Site(SmallVcenter(world), state, world.tick)
    policy = parse_policy(POLICY_TEXT + "lock_vm: gpuops-lock\n", "leased")
    rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)
    befalls(state, mocker)
    effects = len(world.ledger)
    with pytest.raises(StateDamaged) as refused:
        rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)
    assert "\n" not in refused.value.line
    assert len(world.ledger) == effects
    foreseen = rotate(RunKind.DAY, policy, site, apply=False, consent=agreed)
    report = rotate(RunKind.DAY, policy, site, apply=True, consent=agreed)
    assert foreseen.exit_code == (0 if befalls is full else exit_code), "what writes nothing meets no full disk"
    assert report.exit_code == exit_code
    assert foreseen.plan.steps == report.plan.steps
    early = [warning for warning in report.plan.warnings if "ends with this return" in warning]
    assert (len(early), len(report.plan.warnings) > 1) == (1, bool(exit_code)), "it is called in the open window"
    assert {vm.power for vm in world.vms.values() if vm.name.startswith("desktop")} == {PowerState.ON}
    assert {vm.name for vm in world.vms.values() if vm.attributes} == set()


@pytest.mark.parametrize("befalls", [file_of_the_lock, read_only, full])
def test_two_returns_are_kept_apart_on_a_disk_that_takes_nothing_more(
    tmp_path: Path, mocker: MockerFixture, befalls: Callable[[Path, MockerFixture], None]
) -> None:
    with locked(tmp_path, "vc-uuid", NOW, alone=True):
        pass
    befalls(tmp_path, mocker)
    with (
        locked_to_return(tmp_path, "vc-uuid", NOW) as hold,
        pytest.raises(Locked, match="another gpuops is changing this vCenter"),
        locked_to_return(tmp_path, "vc-uuid", NOW),
    ):
        pass
    assert hold.damaged is not None
    with locked_to_return(tmp_path, "vc-uuid", NOW):
        pass


def test_a_return_on_a_disk_that_fails_waits_for_the_night_that_holds_the_lock(
    tmp_path: Path, mocker: MockerFixture
) -> None:
    with locked(tmp_path, "vc-uuid", NOW, alone=True):
        read_only(tmp_path, mocker)
        with pytest.raises(Locked), locked_to_return(tmp_path, "vc-uuid", NOW):
            pass


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
    paths = [*state.iterdir(), *(parent for parent in state.parents if parent.is_relative_to(tmp_path / "home")), state]
    assert {path.name for path in paths} >= {FILE_NAME, "vc-1.lock", AUDIT_FILE, ".local"}
    assert [path for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []


@pytest.mark.parametrize("write", [journal, lock, audit_log])
def test_a_directory_that_anybody_could_replace_is_refused(tmp_path: Path, write: Callable[[Path], None]) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StateDamaged, match="everybody can write in") as refused:
        write(open_to_all / "state" / "gpuops")
    assert refused.value.hint.startswith(f"chmod o-w {open_to_all}")
    open_to_all.chmod(0o1777)
    write(open_to_all / "state" / "gpuops")  # as /tmp is: users cannot replace files of others


@pytest.mark.parametrize("write", [journal, lock, audit_log])
def test_a_directory_below_somebody_elses_is_refused(
    tmp_path: Path, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    lstat, inode = os.lstat, theirs.stat().st_ino

    def stat_of(path: Path) -> os.stat_result:
        stat_read = lstat(path)
        return os.stat_result((*stat_read[:4], 4242, *stat_read[5:10])) if stat_read.st_ino == inode else stat_read

    monkeypatch.setattr(os, "lstat", stat_of)
    with pytest.raises(StateDamaged, match="belongs to another user") as refused:
        write(theirs / "state")
    assert refused.value.exit_code == 7
    assert "set GPUOPS_STATE_DIR" in refused.value.hint


def test_a_directory_behind_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    (behind / "home").mkdir(parents=True)
    (tmp_path / "home").symlink_to(behind / "home")
    behind.chmod(0o777)
    with pytest.raises(StateDamaged, match=f"everybody can write in {behind}"):
        journal(tmp_path / "home" / "state")


def test_a_file_beside_a_database_that_another_thread_removes_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite removes its log with the last connection that is closed: of a run, or of another one beside it."""
    companion, stated = tmp_path / f"{FILE_NAME}-wal", os.fstat

    def removed_first(descriptor: int) -> os.stat_result:
        companion.unlink(missing_ok=True)
        return stated(descriptor)

    companion.touch(mode=0o600)
    monkeypatch.setattr(os, "fstat", removed_first)
    private_file(companion, make=False)
    private_file(companion, make=False)
    assert not companion.exists(), "and none is made in its place"


def test_lines_are_added(tmp_path: Path) -> None:
    for number in range(2):
        append(tmp_path / "state", "2026-11-02T18:00:00+00:00", "certificate-not-verified", number=number, who="a\nb")
    path = tmp_path / "state" / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["number"] for line in lines] == [0, 1]
    assert lines[0]["event"] == "certificate-not-verified"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.touch()
    (state / "audit.jsonl").symlink_to(victim)
    with pytest.raises(StateDamaged, match=r"audit\.jsonl is a symbolic link"):
        append(state, "now", "event")
    assert victim.read_bytes() == b""
