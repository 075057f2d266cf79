"""The shell scripts that run the hooks of a pool's program in guests: POSIX sh.

In a guest the files of a pool lie in `~/.gpuops-pool`, which only the guest's user can read:

    server  LEASE.GPU/        the working directory of `grant` and `revoke` for one share
            port-14833        link to the share that has that port: making the link takes the port
    client  LEASE/            the working directory of `grant` and `revoke` for one lease; `grant` writes `env` there
            env               link to the `env` of the newest lease
    both    ended/LEASE.GPU   or LEASE: it was revoked here and is not granted again. Kept for a day: a gpuops that
                              was stopped may try to grant a lease that another machine has ended since

Hooks have LEASE, and:

    grant, revoke in a server   GPU (from 0), PORT, SERVER_ADDRESS; grant also MEMORY_MIB, SECONDS_LEFT, CLIENT_ADDRESS
    grant in a client           SHARES: `address:port` of each share, with commas between them
    health                      SERVER_ADDRESS only; it runs in `~/.gpuops-pool`

Every script may run again, whatever an earlier one did. Lease ids, addresses and paths come from guests or files of
others: each is checked before it is in a script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from gpuops.errors import Refused, StepFailed
from gpuops.model.workloads.lease_book import LentShare
from gpuops.model.workloads.remote_gpu import RemoteProgram
from gpuops.plan.core.guest_address import unicast_address

PREFIX: Final = "gpuops-pool-"
"""Of temporary directories in guests, and of ids of operations."""
HOME: Final = ".gpuops-pool"
HOOK_FAILED: Final = 1
"""Exit code of a script whose hook failed; `health` has another one if its hook could not be run."""
MOST_SHARES: Final = 1000
"""A guest may print any number of lines: so many are read."""
_LEASE: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")
_PORT: Final = re.compile(r"^port ([0-9]{1,5})$", re.MULTILINE)
_SHARE: Final = re.compile(r"^lease ([0-9a-z][0-9a-z-]{0,62}) ([0-9]{1,3}) ([0-9]{1,9})$", re.MULTILINE)
_BEGIN: Final = (
    # run in a temporary directory; those beside it that are an hour old are of commands whose caller was killed
    f'find "${{PWD%/*}}" -maxdepth 1 -name "{PREFIX}*" -mmin +60 -exec rm -rf {{}} +',
    f'umask 077; cd "${{HOME:?}}" || exit 2; mkdir -p {HOME} && cd {HOME} || exit 2',
)
_LOCK: Final = 'exec 9> lock; flock -w 60 9 || { echo "another run keeps the lock of this guest"; exit 1; }'
"""Only one script at a time changes the files in `HOME`. It waits for another one for at most 60 seconds."""


def grant_in_server(
    program: RemoteProgram, lease: str, share: LentShare, server: str, client: str, seconds_left: int
) -> str:
    """Return the script that lets the client at that address use the share; it prints `port N`."""
    own, last = f"{_lease(lease)}.{share.gpu}", program.ports.last
    limits = _export(LEASE=lease, GPU=share.gpu, MEMORY_MIB=share.memory_mib, SECONDS_LEFT=seconds_left)
    addresses = _export(SERVER_ADDRESS=address(server), CLIENT_ADDRESS=address(client))
    take_port = (
        _own_port(own),
        f'p={program.ports.first}; while [ -z "$PORT" ]; do',
        # the link is made completely or not at all, and never over another one or, with -n, in what that leads to
        f"  if ln -sn {own} port-$p 2> /dev/null; then PORT=$p; fi; p=$((p + 1))",
        f'  [ -n "$PORT" ] || [ $p -le {last} ] || {{ rmdir {own}; echo "every port is taken"; exit 1; }}',
        "done",
    )
    return _grant(own, f"{limits}; {addresses}", program.grant.server, take_port, 'echo "port $PORT"')


def grant_in_client(program: RemoteProgram, lease: str, shares: Sequence[tuple[str, int]]) -> str:
    """Return the script that sets the client up for these shares, each an address and a port."""
    endpoints = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in shares]
    own, variables = _lease(lease), _export(LEASE=lease, SHARES=",".join(endpoints))
    link_env = f"cd .. && ln -sf {own}/env env.new.{own} && mv -f env.new.{own} env"
    return _grant(own, variables, program.grant.client, (), link_env)


def _grant(own: str, variables: str, hook: str, prepare: Sequence[str], finish: str) -> str:
    """Return the script that runs a `grant` in the directory `own`, unless what it grants was revoked there."""
    not_ended = f'[ ! -e ended/{own} ] || {{ echo "this lease has ended here"; exit 1; }}'
    make = f"mkdir -p {own} || exit 1"
    return _script(variables, _LOCK, not_ended, make, *prepare, f"cd {own} || exit 1", _hook(hook), finish)


def revoke_in_server(program: RemoteProgram, lease: str, gpu: int, server: str) -> str:
    """Return the script that cuts the lease off from that GPU; a share that is not there is no error."""
    own = f"{_lease(lease)}.{gpu}"
    return _script(_LOCK, f"mkdir -p {own} || exit 1", *_revoke(own, program.revoke.server, server))


def revoke_all_in_server(program: RemoteProgram, server: str) -> str:
    """Return the script that cuts off every lease from the GPUs of this server, whatever the book has.

    A server that was dead may still have shares of leases that ended meanwhile: its guest could not be reached then.
    """
    return _script(_LOCK, *_revoke("*.[0-9]*", program.revoke.server, server))


def revoke_in_client(program: RemoteProgram, lease: str) -> str:
    """Return the script that takes away what `grant` made there; a lease that is not there is no error."""
    return _script(_LOCK, f"mkdir -p {_lease(lease)} || exit 1", *_revoke(lease, program.revoke.client))


def _revoke(directories: str, hook: str, server: str | None = None) -> tuple[str, ...]:
    """Return the lines that revoke what has these directories, a word of the shell that may be a pattern.

    That it was revoked is recorded last, so that a client is cut off even on a full disk.
    """
    return (
        _export(SERVER_ADDRESS=address(server)) if server is not None else "",
        f'for own in {directories}; do [ -d "$own" ] && [ ! -L "$own" ] || continue',
        'LEASE="${own%.*}"; GPU="${own##*.}"; export LEASE GPU',
        _own_port('"$own"'),
        'cd "$own" || exit 1',
        _hook(hook),
        'cd ..; [ -z "$PORT" ] || rm -f "port-$PORT"; [ "$(readlink env)" != "$own/env" ] || rm -f env',
        'rm -rf -- "$own" "env.new.$own"; mkdir -p ended && find ended -type f -mtime +0 -exec rm -f {} + &&',
        '  : > "ended/$own" || exit 1',
        "done",
    )


def health(program: RemoteProgram, server: str) -> str:
    """Return the script that asks a server for its health."""
    return _script(_export(SERVER_ADDRESS=address(server)), _hook(program.health))


def granted_port(printed: str, server: str) -> int:
    """Return the port that `grant_in_server` printed. Raises StepFailed."""
    port = _PORT.search(printed)
    if port is None:
        raise StepFailed(f"{server}: its guest printed no port", hint="look at the guest")
    return int(port[1])


def served_shares(printed: str) -> dict[tuple[str, int], int]:
    """Return the memory that is used of each share, by lease and GPU, as the health hook printed it."""
    lines = _SHARE.findall(printed)[:MOST_SHARES]
    return {(lease, int(gpu)): int(used_mib) for lease, gpu, used_mib in lines}


def address(text: str) -> str:
    """Return an address by which others reach a guest. Raises Refused: a guest may report any text."""
    reachable = unicast_address(text)
    if reachable is None:
        raise Refused(f"a guest reports {text[:80]!r}, which is no IP address by which others reach it")
    return str(reachable)


def first_address(texts: Sequence[str]) -> str | None:
    """Return the first of these by which others reach a guest, IPv4 before IPv6; None = there is none."""
    reachable = [str(found) for text in texts if (found := unicast_address(text)) is not None]
    return min(reachable, key=lambda text: ip_address(text).version, default=None)


def _script(*lines: str) -> str:
    return "\n".join((*_BEGIN, *lines))


def _hook(commands: str) -> str:
    # not `( ... ) || exit 1`: in a condition `set -e` of the hook has no effect
    return f"( {commands.strip()}\n) 9>&-\n[ $? -eq 0 ] || exit {HOOK_FAILED}"


def _own_port(own: str) -> str:
    """Set `PORT` to the port of the share, or to nothing."""
    own_port = f'PORT=; for port in port-*; do [ "$(readlink "$port")" != {own} ] || PORT="${{port#port-}}"; done'
    return f"{own_port}; export PORT"


def _lease(text: str) -> str:
    if not _LEASE.fullmatch(text):
        raise Refused(f"{text[:80]!r} is no id of a lease")
    return text


def _export(**variables: str | int) -> str:
    return "export " + " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
