"""The shell scripts that guest operations run in the guest of a job: POSIX sh with GNU or busybox tools. Pure: text.

An attempt has a directory of its own, `~/.gpuops-jobs/ATTEMPT`, mode 0700:

    runtime       podman, docker or apptainer
    run           the script that starts the container, and waits for its end
    lock          held (flock) by that script while it runs: its end, and that of the guest, let it go by themselves
    began         seconds since 1970, written before the container is started: what has begun is not started again
    log.0 ...     what the container writes, in parts of 512 KiB: eight from the beginning, then one of the end
    revoked       there where it may not be started any more: it was not, or it has ended and all else is removed
    asked         there from when gpuops has asked it for its end
    ended         `EXIT_CODE BEGAN ENDED`, written last; there whole or not at all

The words of a job stand in no text that a shell reads but as arguments behind `set --`, quoted one by one (`shlex`).
What the runtime's own process is, is found by a mark in its environment, its directory: numbers of processes are given
again, and another user, or a guest beside this one in containers of one machine, may have an attempt of the same name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gpuops.errors import ProtocolError, UsageError
from gpuops.model.guests.container_state import ContainerPhase, ContainerState
from gpuops.model.workloads.job import ContainerRuntime

DIRECTORY: Final = ".gpuops-jobs"
MARK: Final = "GPUOPS_JOB"
PREFIX: Final = "gpuops-job-"
"""Prefix of temporary directories in guests, and of ids of operations."""
PART: Final = 512 * 1024
"""Bytes of one part of the output of a container."""
HEAD_PARTS: Final = 8
TAIL: Final = 256 * 1024
"""Bytes; of output that is longer than the first parts, between one and two times this much of its end is kept."""
LOG_LIMIT: Final = HEAD_PARTS * PART + 2 * TAIL
"""Bytes of output that a guest keeps at most, without the line that reports the omitted bytes."""
MOST_TEXT: Final = 60_000
"""Bytes of a script as VMware Tools get it; they take 60,536 (open-vm-tools, vixCommands.h,
VIX_COMMAND_MAX_USER_INPUT_SIZE)."""
RUNS_STILL: Final = 75
"""Exit code if the attempt to clear still runs."""
UNDECIDED: Final = 2
"""Exit code of a revocation that cannot decide whether the attempt begins."""
NOTHING_RUNS: Final = 76
"""Exit code of a checkpoint if the attempt does not run."""
_ATTEMPT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_HOME: Final = 'umask 077; cd "${HOME:?}" || exit 1; PATH="$HOME/.local/bin:$PATH"; export PATH'
"""Guest operations start no login shell, so the path of the user's own programs is added here."""
_OLD: Final = (
    f'find "${{PWD%/*}}" -maxdepth 1 -type d -name "{PREFIX}*" -user "$(id -u)" -mmin +1440 -exec rm -rf {{}} +'
)
"""Removes temporary directories of killed runs after a day; the script starts in one of these directories."""
_REVOKED_MIN: Final = 7 * 24 * 60
"""How long the guest remembers a revoked attempt, in minutes: no call of gpuops lasts for days."""
_TOOLS: Final = ("flock", "setsid", "mkfifo", "dd", "timeout")


def attempt_name(attempt: str) -> str:
    """Return the attempt. Raises UsageError if it is not a valid name of an attempt."""
    if not _ATTEMPT.fullmatch(attempt):
        raise UsageError(f"{attempt!r} names no attempt at a job", hint="small letters, digits and -, at most 100")
    return attempt


def probe() -> str:
    """Return a script that prints the home directory, the available runtimes and the missing tools."""
    runtimes = " ".join(runtime.value for runtime in ContainerRuntime)
    return "\n".join(
        (
            f'{_HOME}; echo "home $PWD"',
            f'for each in {runtimes}; do command -v $each > /dev/null && echo "runtime $each"; done',
            f'for each in {" ".join(_TOOLS)}; do command -v $each > /dev/null || echo "lacks $each"; done; true',
        )
    )


def parse_probe(printed: str) -> tuple[str, frozenset[ContainerRuntime], tuple[str, ...]]:
    """Return home directory, runtimes and missing tools from the output of `probe`. Raises ProtocolError."""
    home = re.search(r"^home (/[^\n]*)$", printed, re.MULTILINE)
    if home is None:
        raise ProtocolError("its guest tells no home directory", hint="log in to guests as a user who has one")
    runtimes = frozenset(runtime for runtime in ContainerRuntime if f"\nruntime {runtime.value}\n" in printed)
    return home[1].rstrip("/"), runtimes, tuple(tool for tool in _TOOLS if f"\nlacks {tool}\n" in printed)


def start(attempt: str, runtime: ContainerRuntime, words: Sequence[str]) -> str:
    """Return a script that starts these words, unless the attempt has begun, and waits for its begin; exit code 1 = it
    has not begun."""
    return "\n".join(
        (
            f"set -- {shlex.join(words)}",
            _OLD,
            _HOME,
            f"find {DIRECTORY} -maxdepth 2 -name revoked -mmin +{_REVOKED_MIN} 2> /dev/null |",
            '  while read -r f; do rm -rf "${f%/revoked}"; done',
            f"mkdir -p {_directory(attempt)} && cd {_directory(attempt)} || exit 1",
            "[ ! -e began ] && [ ! -e revoked ] || exit 0",
            f"echo {runtime.value} > runtime",
            f"cat > run.$$ <<'GPUOPS_END'\n{_RUN}\nGPUOPS_END",
            "mv run.$$ run || exit 1",
            f'setsid /bin/sh ./run {attempt} "$@" > /dev/null 2>&1 < /dev/null &',
            "n=0; until [ -e began ]; do [ $n -lt 100 ] || exit 1; n=$((n + 1)); sleep 0.1; done",
        )
    )


def too_long(script: str) -> str:
    """Return why the script is too long for a guest operation, where it is quoted twice; "" = it is not."""
    size = len(shlex.quote(shlex.quote(script)).encode())
    return "" if size <= MOST_TEXT else f"its command line takes {size} bytes, quoted; {MOST_TEXT} can be sent"


def look(attempt: str) -> str:
    """Return a script that prints the state of an attempt for `state_of`."""
    return "\n".join((_in(attempt), "tell"))


def state_of(printed: str) -> ContainerState:
    """Return the state that `look` or `stop` has printed. Raises ProtocolError for another text."""
    match = re.fullmatch(
        r"(absent|running|ended)(?: (\d{1,3}))?(?: began (\d{1,12}))?(?: ended (\d{1,12}))?( asked)?\n", printed
    )
    if match is None:
        raise ProtocolError("its guest tells nothing of the job that can be read")
    return ContainerState(
        ContainerPhase(match[1]),
        exit_code=int(match[2]) if match[2] is not None else None,
        began=_moment(match[3]),
        ended=_moment(match[4]),
        asked_to_end=match[5] is not None,
    )


def checkpoint(attempt: str, limit_s: int, words: Sequence[str]) -> str:
    """Return a script that runs these words for at most `limit_s` seconds and prints the end of their output.

    Only one such run at a time.

    Ends with their exit code; 124 or 137 = they took longer (timeout(1)).
    """
    return "\n".join(
        (
            f"set -- {shlex.join(words)}",
            _in(attempt),
            f"[ -e began ] && [ ! -e ended ] && runs || exit {NOTHING_RUNS}",
            f'timeout -k 5 {limit_s} flock checkpoint "$@" > checkpoint.out 2>&1 < /dev/null; c=$?',
            "tail -c 500 checkpoint.out; exit $c",
        )
    )


def revoke(attempt: str) -> str:
    """Return a script that prevents the start of an attempt that has not begun, and prints its state; absent = it will
    not start.

    Exit code 2 = undecided after ten seconds: another call holds the lock to start it, and it has not begun.
    """
    return "\n".join(
        (
            f"({_HOME}; mkdir -p {_directory(attempt)}) || exit {UNDECIDED}",
            _in(attempt),
            "n=0; until flock -n lock sh -c '[ -e began ] || : > revoked' || [ -e began ]; do",
            f"  [ $n -lt 100 ] || exit {UNDECIDED}; n=$((n + 1)); sleep 0.1; done",
            "tell",
        )
    )


def stop(attempt: str, grace_s: int) -> str:
    """Return a script that asks an attempt to end, kills it after `grace_s` seconds, and prints its state; exit code 1
    = it still runs."""
    return "\n".join(
        (
            _in(attempt),
            f"until_s=$(($(date +%s) + {grace_s}))",
            # first: from here on, its end is caused by gpuops
            "if [ -e began ] && [ ! -e ended ] && runs; then : > asked || exit 1; fi",
            "while [ -e began ] && [ ! -e ended ] && runs; do",
            "  now=$(date +%s); s=KILL; t=0",
            "  if [ $now -lt $until_s ]; then s=TERM; t=$((until_s - now)); fi",
            f'  case "$runtime" in podman|docker) "$runtime" stop -t $t {container(attempt)} > /dev/null 2>&1;; esac',
            "  n=0; while [ $n -lt 20 ] && [ ! -e ended ] && held; do",
            # the image is still pulled, or the runtime does not answer or knows no `stop`: its own process is asked
            '    [ $n != 10 ] && [ "$runtime$n" != apptainer0 ] || ends $s',
            "    n=$((n + 1)); sleep 0.1; done",
            "  [ $now -lt $((until_s + 30)) ] || exit 1",
            "done",
            "tell",
        )
    )


def clear(attempt: str) -> str:
    """Return a script that removes the files of an attempt, except for the one that prevents another start.

    A pass may have looked before the attempt began, and be about to start it. Exit code 1 = a file remains.
    """
    return "\n".join(
        (
            _in(attempt, absent="exit 0"),
            f"if [ -e began ] && [ ! -e ended ] && runs; then exit {RUNS_STILL}; fi",
            f'case "$runtime" in podman|docker) "$runtime" rm -f {container(attempt)} > /dev/null 2>&1;; esac',
            # a call that starts it holds the lock
            f"n=0; until flock -n lock sh -c ': > revoked'; do [ $n -lt 100 ] || exit {RUNS_STILL}",
            "  n=$((n + 1)); sleep 0.1; done",
            "rm -f began",  # first, so that a look in between sees all of it or nothing
            "find . ! -name . ! -name revoked -prune -exec rm -rf {} +",
            '[ "$(ls -A)" = revoked ]',
        )
    )


def container(attempt: str) -> str:
    """Return the name of the container of the attempt."""
    return f"gpuops-{attempt_name(attempt)}"


def log_part(home: str, attempt: str, number: int) -> str:
    """Return the path of one part of its output."""
    return f"{home}/{_directory(attempt)}/log.{number}"


def _directory(attempt: str) -> str:
    return f"{DIRECTORY}/{attempt_name(attempt)}"


def _moment(seconds: str | None) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds is not None else None


def _in(attempt: str, absent: str = "echo absent; exit 0") -> str:
    """Return the lines that change to its directory and define the functions that print its state."""
    find_processes = 'grep -lzs -x -F -e "$m" /proc/[0-9]*/environ | sed "s:/proc/::;s:/environ::"'
    return "\n".join(
        (
            _HOME,
            f"cd {_directory(attempt)} 2> /dev/null || {{ {absent}; }}",
            f'runtime=$(cat runtime 2> /dev/null); m="{MARK}=$(pwd -P)"',
            f"found() {{ {find_processes}; }}",
            'ends() { l=$(found); [ -z "$l" ] || kill -$1 $l 2> /dev/null; }',
            "held() { [ -e lock ] && ! flock -n lock true; }",
            # the script that waited was killed: the container may run on, and only its runtime knows
            "runs() {",
            f"  held && return 0; set -- container inspect -f '{{{{.State.Running}}}}' {container(attempt)}",
            '  case "$runtime" in',
            '  podman|docker) [ "$("$runtime" "$@" 2> /dev/null)" = true ];;',
            '  *) [ -n "$(found)" ];;',
            "  esac",
            "}",
            "tell() {",
            '  b=$(cat began 2> /dev/null); [ -z "$b" ] || b=" began $b"; q=; [ ! -e asked ] || q=" asked"',
            '  if [ ! -e began ]; then echo absent; elif [ -e ended ]; then told; elif runs; then echo "running$b"',
            '  elif [ -e ended ]; then told; else echo "ended$b$q"; fi',
            "}",
            'told() { read -r c b e < ended; echo "ended $c began $b ended $e$q"; }',
        )
    )


_RUN: Final = rf"""# the first word is the attempt; the others are the command line of its container
exec 9> lock
flock -n 9 || exit 0
[ ! -e began ] && [ ! -e revoked ] || exit 0
shift
date +%s > began.new && mv began.new began || exit 1

# what comes out of the pipe, piece by piece: each dd reads once, and never past the end of a part
keep() {{
  n=0; at=0; dropped=0
  while :; do
    if [ $n -lt {HEAD_PARTS} ]; then f=log.$n; room=$(({PART} - at)); else f=tail.new; room=$(({TAIL} - at)); fi
    [ $room -le 65536 ] || room=65536
    dd bs=$room count=1 >> $f 2> /dev/null || {{ cat > /dev/null; return 3; }}
    size=$(wc -c < $f)
    [ $size -gt $at ] || return 0
    at=$size
    if [ $n -lt {HEAD_PARTS} ]; then
      [ $at -lt {PART} ] || {{ n=$((n + 1)); at=0; }}
    elif [ $at -ge {TAIL} ]; then
      [ ! -e tail.old ] || dropped=$((dropped + {TAIL}))
      mv tail.new tail.old; echo $dropped > dropped; at=0
    fi
  done
}}

rm -f pipe; mkfifo pipe || exit 1
keep < pipe 9>&- &
reader=$!
env "{MARK}=$(pwd -P)" setsid "$@" > pipe 2>&1 < /dev/null 9>&- &
wait $!; c=$?
# something may hold the pipe that the container has left behind
n=0; while kill -0 $reader 2> /dev/null && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.1; done
kill $reader 2> /dev/null; wait $reader; r=$?
if [ -e tail.new ] || [ -e tail.old ]; then
  d=$(cat dropped 2> /dev/null || echo 0)
  {{ [ "$d" = 0 ] || printf '\n[gpuops: %s bytes were left out here]\n' "$d"
    cat tail.old tail.new 2> /dev/null; }} > log.new
  mv log.new log.{HEAD_PARTS}; rm -f tail.old tail.new
fi
if [ $r = 3 ]; then
  # in place of the last part, whose room the end needs
  n=$(ls log.* | wc -l)
  printf '[gpuops: the guest could not write the rest down: is its disk full?]\n' > log.$((n - 1))
fi
echo "$c $(cat began) $(date +%s)" > ended.new && mv ended.new ended
rm -f pipe"""
"""Runs the container and waits for its end. It has no quoted text of a job: its words are its arguments."""
