"""The shell scripts that guest operations run in the guests of a cluster: POSIX sh with GNU or busybox tools.

What a run makes in a guest lies in a directory of its own in the home directory of the guest's user, which only that
user can read, and in one line of `~/.ssh/authorized_keys`. Both bear the names of cluster and run: the next run of the
same cluster finds what a killed one left. What is of this run is never removed by its own preparation, for guests may
share a home directory.

The key pair is made in the guest of rank 0, and its private half never leaves it. The public half lets a login in that
has no terminal and forwards nothing (`restrict`), and marks what it starts, so that it is found again (sshd(8),
"AUTHORIZED_KEYS FILE FORMAT").
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from gpuops.errors import ProtocolError
from gpuops.plan.cluster_run.launch import DIRECTORY, MARK, Launch

PART: Final = 256 * 1024
"""Bytes of output that are fetched at once."""
SHOWN: Final = 16 * 1024 * 1024
"""Bytes of output that are fetched at the most; a guest keeps no more than that of what is not fetched."""
PREFIX: Final = "gpuops-cluster-run-"
"""Of temporary directories in guests, and of ids of operations."""
HOST_KEYS: Final = tuple(f"/etc/ssh/ssh_host_{kind}_key.pub" for kind in ("ed25519", "ecdsa", "rsa"))
_KEY: Final = re.compile(r"\b((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+={0,2})(?:\s|$)")
_KEYS_FILE: Final = ".ssh/authorized_keys"
_STEP: Final = f"{MARK}_STEP"
"""The variable that the scripts have which prepare guests and clear them: `CLUSTER/RUN`."""
_HOME: Final = 'umask 077; cd "${HOME:?}" || exit 1'


def public_key(text: str) -> str:
    """The key without its comment, of a line that ssh-keygen wrote. Raises ProtocolError for another text."""
    found = _KEY.search(text)
    if found is None:
        raise ProtocolError("its guest tells no public key", hint="install openssh-client in the template")
    return found[1]


def home(text: str) -> str:
    """The path of the home directory, of what `prepare` printed. Raises ProtocolError for another text."""
    found = re.search(r"^home (/[^\n]*)$", text, re.MULTILINE)
    if found is None:
        raise ProtocolError("its guest tells no home directory", hint="log in to guests as a user who has one")
    return found[1].rstrip("/")


def end_earlier(launch: Launch) -> str:
    """Ends and removes what an earlier run of the cluster left.

    It is run in a temporary directory; others beside it with such a name are of runs that were killed.
    """
    return _step(launch, _end_earlier(launch))


def _end_earlier(launch: Launch) -> str:
    return "\n".join(
        (
            "t=$PWD",
            _ending_scripts(launch),
            f'for each in "${{t%/*}}"/{PREFIX}*; do [ "$each" = "$t" ] || rm -rf "$each"; done',
            f'{_HOME}; echo "home $PWD"',
            _ending(f"{launch.cluster}/"),
            f'for each in {DIRECTORY}/{launch.cluster}/*; do [ "$each" = {launch.directory} ] || rm -rf "$each"; done',
            _without_keys(_comment(launch.cluster), but=launch.run),
            f"rmdir {DIRECTORY}/{launch.cluster} {DIRECTORY} 2> /dev/null; true",
        )
    )


def prepare(launch: Launch, *, first: bool) -> str:
    """The same, and makes this run's directory; in the first guest also its key pair, whose public half is printed."""
    lines = [_end_earlier(launch), f"mkdir -p {launch.directory} || exit 1"]
    if first and launch.over_ssh:
        key = f"{launch.directory}/key"
        lines.append(f"ssh-keygen -q -t ed25519 -N '' -C {_comment(launch.cluster)}{launch.run} -f {key} || exit 1")
        lines.append(f"cat {key}.pub")
    return _step(launch, "\n".join(lines))


def admit(launch: Launch, key: str) -> str:
    """Lets that public key into the guest."""
    command = f'exec env {MARK}={launch.mark} /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    escaped = command.replace('"', '\\"')
    line = f'command="{escaped}",restrict {key} {_comment(launch.cluster)}{launch.run}'
    lines = (
        f"{_HOME}; mkdir -p .ssh || exit 1",
        # a last line without its end would take ours in
        f'if [ -s {_KEYS_FILE} ] && [ -n "$(tail -c 1 {_KEYS_FILE})" ]; then echo >> {_KEYS_FILE}; fi',
        f"printf '%s\\n' {shlex.quote(line)} >> {_KEYS_FILE}",
    )
    return _step(launch, "\n".join(lines))


def start(launch: Launch, node: int, known_hosts: Sequence[str]) -> str:
    """Runs the launcher of that node, and lays its output down in parts, `part.0` and on, until it ends.

    A part is there whole or not at all. Ends with the exit code of the launcher.
    """
    files = {"known_hosts": "".join(f"{line}\n" for line in known_hosts), "hostfile": launch.hostfile}
    lines = [f"{_HOME}; H=$PWD", f"cd {launch.directory} || exit 1", "D=$PWD"]
    if launch.over_ssh:
        lines += [f"printf %s {shlex.quote(text)} > {name}" for name, text in files.items()]
        lines.append(_SSH % launch.ssh_port)
    lines += [
        # mpirun refuses root without both (mpirun(1), "Running as root"); whoever names root as guest login wants it
        'if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi',
        ': > out; cd "$H"',
        f'( {launch.command_lines[node]}\necho $? > "$D/ended.new"; mv "$D/ended.new" "$D/ended"',
        ') >> "$D/out" 2>&1 < /dev/null &',
        'p=$!; cd "$D"',
        _PARTS,
        'wait $p; [ -e ended ] && exit "$(cat ended)"; exit 137',
    ]
    # by `env`, so that the shell too has the mark from its start on, and is found by it
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in _environment(launch).items())
    return f"exec env {variables} /bin/sh -c {shlex.quote(chr(10).join(lines))}"


def stop(launch: Launch) -> str:
    """Ends every process of this run in the guest; exit code 1 = one is left."""
    return _step(launch, _ending(launch.mark))


def clean(launch: Launch) -> str:
    """Removes what the run made in the guest, whose processes have ended; exit code 1 = something is left."""
    lines = (
        _HOME,
        _without_keys(f"{_comment(launch.cluster)}{launch.run}"),
        f"rm -rf {launch.directory}",
        f"rmdir {DIRECTORY}/{launch.cluster} {DIRECTORY} 2> /dev/null",
        f"[ ! -e {launch.directory} ] && ! grep -qsF -e {_comment(launch.cluster)}{launch.run} {_KEYS_FILE}",
    )
    return _step(launch, "\n".join(lines))


def _step(launch: Launch, script: str) -> str:
    """The script, marked as the run's: one that goes on after its run was killed is found by the next."""
    return f"exec env {_STEP}={launch.mark} /bin/sh -c {shlex.quote(script)}"


def _environment(launch: Launch) -> Mapping[str, str]:
    return {MARK: launch.mark, **launch.environment}


def _comment(cluster: str) -> str:
    """How the comments of a cluster's keys begin; the run follows."""
    return f"gpuops-cluster-run:{cluster}:"


def _ending_scripts(launch: Launch) -> str:
    """Ends the scripts of earlier runs, before they do more: those that are there now, and none that comes later."""
    scripts = f"grep -lzs -e '^{_STEP}={launch.cluster}/' /proc/[0-9]*/environ"
    # a process that has ended meanwhile, as those that look for them, has no variable that could be another run's
    variable = f"grep -zs -e '^{_STEP}={launch.cluster}/' $e | tr '\\0' '\\n'"
    return "\n".join(
        (
            f"s=$(for e in $({scripts}); do",
            f"  {variable} | grep -qvxF -e {_STEP}={launch.mark} && echo $e",
            "done | sed 's:/proc/::;s:/environ::')",
            '[ -z "$s" ] || { kill -KILL $s 2> /dev/null; sleep 0.5; }',
        )
    )


def _ending(mark: str) -> str:
    """Ends the processes whose mark begins so: asked four times, then killed."""
    found = f"grep -lzs -e '^{MARK}={mark.replace('.', '[.]')}' /proc/[0-9]*/environ | sed 's:/proc/::;s:/environ::'"
    return "\n".join(
        (
            f"found() {{ {found}; }}",
            "for s in TERM TERM TERM TERM KILL KILL KILL KILL; do",
            '  l=$(found); [ -n "$l" ] || break; kill -$s $l 2> /dev/null; sleep 0.5',
            "done",
            '[ -z "$(found)" ] || exit 1',
        )
    )


def _without_keys(comment: str, but: str | None = None) -> str:
    """Takes the lines with such a comment out, but for those of the run `but`; the file is replaced whole.

    By a new file of its own: guests that share a home directory do this at the same time.
    """
    kept = f"grep -F -e {comment}{but} $f; " if but is not None else ""
    return "\n".join(
        (
            f"f={_KEYS_FILE}",
            f"if grep -qsF -e {comment} $f; then",
            f"  n=$(mktemp $f.gpuops.XXXXXX) && cp -p $f $n && {{ grep -vF -e {comment} $f; {kept}true; }} > $n",
            "  if [ -s $n ]; then mv $n $f; else rm -f $f $n; fi",
            "fi",
        )
    )


_SSH: Final = r"""s=$(command -v ssh) || { echo 'ssh is not installed' >&2; exit 127; }
mkdir -p bin; export PATH="$D/bin:$PATH"
{ echo '#!/bin/sh'
  echo "exec '$s' -p %d -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile='\"$D/key\"' \\"
  echo "  -o StrictHostKeyChecking=yes -o UserKnownHostsFile='\"$D/known_hosts\"' \"\$@\""; } > bin/ssh
chmod 700 bin/ssh"""
"""An `ssh` of the run's own, before that of the guest: with its key, and no host that it does not know. Of options that
are given twice ssh takes the first (ssh_config(5)), so horovodrun's StrictHostKeyChecking=no does not count."""

_PARTS: Final = f"""n=0; at=0
while :; do
  e=0; [ -e ended ] && e=1; kill -0 $p 2> /dev/null || e=1
  size=$(wc -c < out)
  while [ $size -gt $at ] && [ $at -lt {SHOWN} ]; do
    tail -c +$((at + 1)) out | head -c {PART} > new; got=$(wc -c < new)
    mv new part.$n; n=$((n + 1)); at=$((at + got))
  done
  if [ $size -gt {SHOWN} ]; then : > cut; : > out; at={SHOWN}; fi
  [ $e = 0 ] || break
  sleep 0.5
done"""
