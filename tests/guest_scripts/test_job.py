"""The scripts of the guest side, run by the shell of this machine in a home directory of their own, with a stand-in for
the runtime that notes each word that it is given."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.errors import ProtocolError, UsageError
from gpuops.extras.jobs import guest_container
from gpuops.extras.jobs.job import ContainerRuntime
from gpuops.model.guests.guest import ContainerPhase, ContainerState
from tests.waiting import wait_until

STAND_IN: Final = """#!/bin/sh
case "$1" in
  run) shift; printf '%s\\0' "$@" >> "$HOME/words"; [ ! -e "$HOME/act" ] || exec sh "$HOME/act";;
  stop) exit 125;;
  *) exit 1;;
esac
"""
HOSTILE: Final = (
    *('$(touch "$HOME/owned")', "`touch $HOME/owned`", "'; touch $HOME/owned; '", '"; touch $HOME/owned; "'),
    *("\n touch $HOME/owned\n", "GPUOPS_END", "\nGPUOPS_END\ntouch $HOME/owned\n", "&& touch owned", "|| touch owned"),
    *(
        "\\",
        "\\'",
        "'",
        '"',
        "$HOME",
        "${IFS}",
        "~",
        "*",
        "?",
        "[a-z]",
        "{a,b}",
        "!!",
        "#",
        "%s%n",
        "-rf",
        "--",
        "",
        " ",
    ),
    *("\x1b[2J\x1b]0;x\x07", "\t", "\r\n", "\u202e", "\U0001f600", "\u00e4", ";", "<", ">", "(", ")", "&"),
)
WORDS: Final = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60),
    ),
    max_size=12,
)


class Home:
    """A home directory with the stand-in in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tmp").mkdir()
        tools = path / ".local/bin"
        tools.mkdir(parents=True)
        for runtime in ContainerRuntime:
            (tools / runtime.value).write_text(STAND_IN, encoding="utf-8")
            (tools / runtime.value).chmod(0o755)

    def run(self, script: str, timeout_s: float = 60) -> tuple[int, str]:
        """Exit code and output, as a guest operation would have them."""
        environment = {"HOME": str(self.path), "PATH": os.environ["PATH"], "TMPDIR": str(self.path / "tmp")}
        directory = tempfile.mkdtemp(prefix=guest_container.PREFIX, dir=self.path / "tmp")
        with Path(directory, "printed").open("wb") as printed:
            process = subprocess.run(
                ["/bin/sh", "-c", script], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
                stdout=printed, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
            )  # fmt: skip
        return process.returncode, Path(directory, "printed").read_text(encoding="utf-8", errors="replace")

    def start(self, attempt: str, words: Sequence[str], runtime: ContainerRuntime = ContainerRuntime.PODMAN) -> None:
        code, printed = self.run(guest_container.start(attempt, runtime, (runtime.value, "run", *words)))
        assert (code, printed) == (0, "")

    def look(self, attempt: str) -> ContainerState:
        code, printed = self.run(guest_container.job_command("look", attempt))
        assert code == 0
        return guest_container.state_of(printed)

    def ended(self, attempt: str) -> ContainerState:
        wait_until(lambda: self.look(attempt).state is not ContainerPhase.RUNNING)
        return self.look(attempt)

    def log(self, attempt: str) -> bytes:
        parts = [
            self.path / guest_container.DIRECTORY / attempt / f"log.{number}"
            for number in range(guest_container.HEAD_PARTS + 1)
        ]
        return b"".join(part.read_bytes() for part in parts if part.exists())

    @property
    def words(self) -> list[str]:
        """All that the stand-in was given."""
        return (self.path / "words").read_bytes().decode().split("\0")[:-1]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    new_home = Home(tmp_path / "a home of $(its) 'own'")
    yield new_home


@pytest.fixture(autouse=True)
def _there(tmp_path: Path) -> None:
    (tmp_path / "a home of $(its) 'own'").mkdir()


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(WORDS)
def test_whatever_the_words_are_the_runtime_gets_each_as_it_is_and_no_shell_runs_one(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory))
        home.start("it", ["first", *words])
        assert home.ended("it").exit_code == 0
        assert home.words == ["first", *words]
        assert [path.name for path in home.path.rglob("*owned*")] == []


def test_all_hostile_words_at_once(home: Home) -> None:
    home.start("it", HOSTILE)
    assert home.ended("it").exit_code == 0 and home.words == list(HOSTILE)
    assert [path.name for path in home.path.rglob("*owned*")] == []


def test_a_checkpoint_gets_its_words_as_they_are(home: Home) -> None:
    (home.path / "act").write_text("sleep 30")
    home.start("it", ["a"])
    code, printed = home.run(guest_container.job_command("checkpoint", "it", 20, "printf", r"%s\n", *HOSTILE))
    assert code == 0
    directory = home.path / guest_container.DIRECTORY / "it"
    assert (directory / "checkpoint.out").read_bytes().decode() == "".join(f"{word}\n" for word in HOSTILE)
    assert [path.name for path in home.path.rglob("*owned*")] == [] and len(printed) <= 500
    assert home.run(guest_container.job_command("stop", "it", 0))[0] == 0


def test_started_eight_times_at_once_it_runs_once(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: home.start("it", [f"word-{number}"]), range(8)))
    ended = home.ended("it")
    home.start("it", ["again"])
    time.sleep(0.3)  # by then a second container would have its words
    assert home.ended("it") == ended and len(home.words) == 1 and home.words != ["again"]


@pytest.mark.long
@pytest.mark.parametrize("runtime", list(ContainerRuntime))
def test_what_its_runtime_cannot_stop_is_ended_by_its_mark(home: Home, runtime: ContainerRuntime) -> None:
    """An image that is still pulled has no container yet; apptainer has no `stop` for what `run` has started."""
    (home.path / "act").write_text("trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done")
    home.start("it", ["a"], runtime)
    wait_until(lambda: b"up" in home.log("it"))
    code, printed = home.run(guest_container.job_command("stop", "it", 20))
    state = guest_container.state_of(printed)
    assert (code, state.state, state.exit_code) == (0, ContainerPhase.ENDED, 9)
    assert home.run(guest_container.job_command("clear", "it")) == (0, "")
    assert [path.name for path in (home.path / guest_container.DIRECTORY / "it").iterdir()] == ["revoked"]
    home.start("it", ["a"], runtime)
    assert not (home.path / guest_container.DIRECTORY / "it" / "began").exists(), (
        "what is over and noted is not started again"
    )


@pytest.mark.long
def test_what_does_not_heed_its_mark_is_killed_after_the_grace(home: Home) -> None:
    (home.path / "act").write_text("trap '' TERM; echo up; while :; do sleep 0.1; done")
    home.start("it", ["a"], ContainerRuntime.APPTAINER)
    wait_until(lambda: b"up" in home.log("it"))
    assert home.run(guest_container.job_command("clear", "it")) == (guest_container.RUNS_STILL, "")
    code, printed = home.run(guest_container.job_command("stop", "it", 1))
    assert code == 0 and guest_container.state_of(printed).exit_code == 137


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("megabytes", [0, 1, 4, 5, 9])
def test_of_megabytes_both_ends_are_kept_and_what_lies_between_is_counted(home: Home, megabytes: int) -> None:
    (home.path / "act").write_text(f"seq 1 {megabytes * 140_000}; printf '\\000\\377end'")
    home.start("it", ["a"])
    assert home.ended("it").exit_code == 0
    whole = "".join(f"{number}\n" for number in range(1, megabytes * 140_000 + 1)).encode() + b"\x00\xffend"
    log = home.log("it")
    head, _, remainder = log.partition(b"\n[gpuops: ")
    count, _, tail = remainder.partition(b" bytes were left out here]\n")
    left_out = len(whole) - len(head) - len(tail)
    assert whole.startswith(head) and whole.endswith(tail) and left_out == int(count or 0)
    assert bool(left_out) == (len(whole) > guest_container.LOG_LIMIT) and len(log) <= guest_container.LOG_LIMIT + 100
    parts = sorted((home.path / guest_container.DIRECTORY / "it").glob("log.[0-7]"))
    assert {part.stat().st_size for part in parts[:-1]} <= {guest_container.PART}


@pytest.mark.long
def test_a_disk_that_is_full_ends_no_job_and_is_said(home: Home) -> None:
    """In a file system of 256 KiB, which is mounted where only this script sees it."""
    (home.path / "act").write_text("seq 1 100000; echo was not ended by a broken pipe > $HOME/noted; exit 4")
    start = guest_container.start("it", ContainerRuntime.PODMAN, ("podman", "run", "a"))
    lines = (
        'mkdir "$HOME/.gpuops-jobs" && mount -t tmpfs -o size=256k none "$HOME/.gpuops-jobs" || exit 99',
        f"({start})",
        'cd "$HOME/.gpuops-jobs/it"; n=0; until [ -e ended ] || [ $n = 300 ]; do n=$((n + 1)); sleep 0.1; done',
        "cat ended log.*",
    )
    namespaces = "-m" if os.geteuid() == 0 else "-rm"
    code, printed = home.run(f"exec unshare {namespaces} /bin/sh -c {shlex.quote(chr(10).join(lines))}")
    if code == 99 or "unshare failed" in printed:
        pytest.skip(f"nothing can be mounted here: {printed}")
    assert re.fullmatch(
        r"4 \d+ \d+\n\[gpuops: the guest could not write the rest down: is its disk full\?\]\n", printed
    )
    assert (home.path / "noted").exists()


@pytest.mark.long
def test_temporary_directories_of_killed_calls_are_removed_a_day_after(home: Home) -> None:
    old, new = (home.path / "tmp" / f"{guest_container.PREFIX}{name}" for name in ("old", "new"))
    foreign = home.path / "tmp/of-somebody-else"
    for directory in (old, new, foreign):
        directory.mkdir()
    for directory in (old, foreign):
        os.utime(directory, (time.time() - 2 * 86400,) * 2)
    home.start("it", ["a"])
    assert (old.exists(), new.exists(), foreign.exists()) == (False, True, True)


@pytest.mark.long
def test_what_a_guest_has_is_read(home: Home) -> None:
    code, printed = home.run(guest_container.probe())
    assert code == 0
    assert guest_container.parse_probe(printed) == (str(home.path), frozenset(ContainerRuntime), ())
    assert guest_container.parse_probe("home /root\nlacks flock\n") == ("/root", frozenset(), ("flock",))
    with pytest.raises(ProtocolError):
        guest_container.parse_probe("nothing")


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["", "up\n", "ended 7 began x\n", "ended 1234 began 1 ended 2\n", "running\nrunning\n"]
)
def test_another_answer_is_no_state(text: str) -> None:
    with pytest.raises(ProtocolError):
        guest_container.state_of(text)


@pytest.mark.long
@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "..", "a b", "a" * 101, "a\n", "$(x)"])
def test_another_name_is_no_attempt(name: str) -> None:
    with pytest.raises(UsageError):
        guest_container.job_command("look", name)


@pytest.mark.long
def test_an_attempt_of_the_same_name_in_another_home_is_left_alone(home: Home, tmp_path: Path) -> None:
    """Of another user of the guest, or of a guest that shares the machine's processes."""
    (tmp_path / "other").mkdir()
    second_home = Home(tmp_path / "other")
    for either_home in (home, second_home):
        (either_home.path / "act").write_text("sleep 30")
        either_home.start("it", ["a"], ContainerRuntime.APPTAINER)
    assert home.run(guest_container.job_command("stop", "it", 1))[0] == 0
    assert home.look("it").state is ContainerPhase.ENDED
    assert second_home.look("it").state is ContainerPhase.RUNNING
    assert second_home.run(guest_container.job_command("stop", "it", 1))[0] == 0
