"""The shell scripts that guest operations run in the guests of servers and clients of a pool: POSIX sh.

What a pool makes in a guest lies in `~/.gpuops-pool`, which only the guest's user can read:

    server  LEASE.GPU/        one for each share that is lent; `boot` there tells by which start of the guest
            port-14833        link to the share that has that port: whoever makes the link has it, nobody twice
    client  LEASE/key         the lease's key, of a program that has keys
            LEASE/env         what the client's programs need
            env               link to that of the lease that came last
    both    ended/LEASE.GPU   or LEASE: it was dismissed, or left, here, and does not come back. Kept for a day: a
                              gpuops that stood still may go on with a lease that another machine has ended since

Every script may be run again, whatever an earlier one came to: what is there stays as it is.
Lease ids, addresses and keys come from guests or files of others: each is checked before it is in a script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gpuops.errors import Refused, StepFailed
from gpuops.model.workloads.lease_book import LentShare
from gpuops.model.workloads.remote_gpu import LeaseKey, MeasuredShare, RemoteProgram, ServedShare
from gpuops.plan.core.guest_address import unicast_address

PREFIX: Final = "gpuops-pool-"
"""Of temporary directories in guests, and of ids of operations."""
HOME: Final = ".gpuops-pool"
_LEASE: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")
_KEY: Final = re.compile(r"^key ([0-9a-f]{64})$", re.MULTILINE)
_PORT: Final = re.compile(r"^port ([0-9]{1,5})$", re.MULTILINE)
_TOLD: Final = re.compile(r"^told ([A-Za-z0-9_.:-]{1,200})$", re.MULTILINE)
_USED: Final = re.compile(r"([0-9a-z][0-9a-z-]{0,62}) ([0-9]{1,3}) ([0-9]{1,9})")
_SHARE: Final = re.compile(r"^share ([0-9a-z][0-9a-z-]{0,62}) ([0-9]{1,3}) (same|other)$", re.MULTILINE)
_BOOT: Final = "cat /proc/sys/kernel/random/boot_id 2> /dev/null"
"""Another one after each start of the guest (proc_sys_kernel(5))."""
_IN_HOME: Final = f'umask 077; cd "${{HOME:?}}" || exit 1; mkdir -p {HOME} && cd {HOME} || exit 1'
_LOCK: Final = 'exec 9> lock; flock -w 60 9 || { echo "another run keeps the lock of this guest"; exit 1; }'
"""Until a script has ended no other one is at what lies there."""
# run in a temporary directory; others beside it with such a name, an hour old, are of commands whose caller was killed
_SWEEP: Final = f'find "${{PWD%/*}}" -maxdepth 1 -name "{PREFIX}*" -mmin +60 -exec rm -rf {{}} +'


@dataclass(frozen=True, slots=True)
class AdmittedShare:
    """A share that a client may use, as its server's guest tells of it."""

    share: LentShare
    address: str
    port: int
    told: str = ""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """One server, whose guest is asked."""

    program: RemoteProgram
    address: str
    """Of its guest, in the network of the pool."""
    gpus: tuple[int, ...]

    def start(self) -> str:
        return self._script(self.program.server.start)

    def stop(self) -> str:
        """Ends what serves; then no share is left."""
        # the shares last: whoever is killed between has nothing that serves without a share that names it
        return f"{self._script(self.program.server.stop)} && rm -rf -- *.[0-9]* port-*"

    def check(self) -> str:
        return self._script(self.program.server.check)

    def look(self) -> str:
        """The same, and where it serves prints `share LEASE GPU same` for each share there; or `other`, which was put
        there before the guest was started anew."""
        shares = (
            "for each in *.[0-9]*; do",
            '  [ -d "$each" ] || continue',
            f'  boot=same; [ ! -s "$each/boot" ] || [ "$(cat "$each/boot")" = "$({_BOOT})" ] || boot=other',
            '  echo "share ${each%.*} ${each##*.} $boot"',
            "done",
        )
        return "\n".join((f"{self.check()} || exit", *shares))

    def used(self) -> str:
        return self._script(self.program.server.used)

    def admit(self, lease: str, share: LentShare, client: str, seconds_left: int, key: str) -> str:
        """Admits the client at that address; prints `port N`, and `told WORD` where the program tells one."""
        last = self.program.first_port + self.program.ports - 1
        own = f"{_lease(lease)}.{share.gpu}"
        variables = {
            **self._share(lease, share.gpu),
            "MEMORY_MIB": str(share.memory_mib),
            "SECONDS_LEFT": str(max(seconds_left, 1)),
            "CLIENT_ADDRESS": address(client),
            "KEY": key,
        }
        return "\n".join(
            (
                *self._begin(variables),
                _LOCK,
                _not_ended(own),
                f"mkdir -p {own} || exit 1",
                _own_port(own),
                f'p={self.program.first_port}; while [ -z "$PORT" ]; do',
                # a link is made whole or not at all, and never over another nor, with -n, within what that leads to
                f"  if ln -sn {own} port-$p 2> /dev/null; then PORT=$p; fi; p=$((p + 1))",
                f'  [ -n "$PORT" ] || [ $p -le {last} ] || {{ rmdir {own}; echo "every port is taken"; exit 1; }}',
                "done",
                "export PORT",
                f"cd {own} || exit 1",
                f"{_BOOT} > boot",
                f"( {_body(self.program.server.admit)} ) 9>&- || exit 1",
                'echo "port $PORT"',
            )
        )

    def dismiss(self, lease: str, gpu: int) -> str:
        """Cuts the lease off from that GPU; what is not there is no error."""
        own = f"{_lease(lease)}.{gpu}"
        return "\n".join(
            (
                *self._begin(self._share(lease, gpu)),
                _LOCK,
                _own_port(own),
                "export PORT",
                f"( if [ -d {own} ]; then cd {own}; fi; {_body(self.program.server.dismiss)} ) 9>&- || exit 1",
                f'[ -z "$PORT" ] || rm -f "port-$PORT"; rm -rf -- {own}',
                _ended(own),
            )
        )

    def _script(self, body: str) -> str:
        variables = {"SERVER_ADDRESS": address(self.address), "GPUS": " ".join(map(str, self.gpus))}
        return "\n".join((*self._begin(variables), f"( {_body(body)} )"))

    def _share(self, lease: str, gpu: int) -> dict[str, str]:
        return {
            "LEASE": _lease(lease),
            "GPU": str(gpu),
            "SERVER_ADDRESS": address(self.address),
            "UNIT": f"gpuops-lease-{lease}-{gpu}",
        }

    def _begin(self, variables: Mapping[str, str]) -> Iterator[str]:
        yield _SWEEP
        yield _IN_HOME
        yield _export(variables)


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One client, whose guest is set up for a lease."""

    program: RemoteProgram

    def key(self, lease: str) -> str:
        """Makes the lease's directory and its key, of a program that has keys; prints `key` and its SHA-256."""
        own = _lease(lease)
        lines = [_SWEEP, _IN_HOME, _LOCK, _not_ended(own), f"mkdir -p {own} && cd {own} || exit 1"]
        if self.program.key is LeaseKey.CLIENT:
            lines += [
                "if [ ! -s key ]; then",
                "  head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n' > key.new && mv key.new key || exit 1",
                "fi",
                "sum=$(sha256sum < key) || exit 1",
                'echo "key ${sum%% *}"',
            ]
        return "\n".join(lines)

    def enter(self, lease: str, environment: str) -> str:
        """Lays the environment down, whole or not at all, and lets the program in."""
        own = _lease(lease)
        return "\n".join(
            (
                _SWEEP,
                _IN_HOME,
                _LOCK,
                _not_ended(own),
                f"mkdir -p {own} && cd {own} || exit 1",
                self._variables(lease),
                f"printf %s {shlex.quote(environment)} > env.new && mv env.new env || exit 1",
                f"( {_body(self.program.client.enter)} ) 9>&- || exit 1",
                f"cd .. && ln -s {own}/env env.new.{own} && mv -f env.new.{own} env",
            )
        )

    def leave(self, lease: str) -> str:
        """Takes the environment and the key away; what is not there is no error."""
        own = _lease(lease)
        return "\n".join(
            (
                _SWEEP,
                _IN_HOME,
                _LOCK,
                f"if [ -d {own} ]; then",
                f"( cd {own} || exit 1",
                self._variables(lease),
                f"{_body(self.program.client.leave)} ) 9>&- || exit 1",
                "fi",
                f'[ "$(readlink env)" != {own}/env ] || rm -f env',
                f"rm -rf -- {own} env.new.{own}",
                _ended(own),
            )
        )

    @staticmethod
    def _variables(lease: str) -> str:
        return f'{_export({"LEASE": _lease(lease)})}; KEY_FILE="$PWD/key"; export KEY_FILE'


def key_file(lease: str) -> str:
    """Where the client has the lease's key, as a shell of its user reads it."""
    return f"$HOME/{HOME}/{_lease(lease)}/key"


def digest(printed: str, name: str) -> str:
    """The SHA-256 of the lease's key, of what `key` printed in the guest of that name. Raises StepFailed."""
    return _found(_KEY, printed, f"{name}: its guest tells no key")


def admitted(printed: str, share: LentShare, server: str) -> AdmittedShare:
    """What `admit` printed in the server's guest, which has that address. Raises StepFailed."""
    port = int(_found(_PORT, printed, f"{share.server}: its guest tells no port"))
    told = _TOLD.search(printed)
    return AdmittedShare(share, address(server), port, told[1] if told is not None else "")


def measured(printed: str, name: str) -> tuple[MeasuredShare, ...]:
    """What `used` printed in the server's guest of that name. Raises StepFailed for another text."""
    found = []
    for line in printed.splitlines():
        told = _USED.fullmatch(line.strip())
        if told is None:
            raise StepFailed(f"{name}: its guest measures {line[:80]!r}, which is no LEASE GPU MIB")
        found.append(MeasuredShare(told[1], int(told[2]), int(told[3])))
    return tuple(found)


def served(printed: str) -> tuple[ServedShare, ...]:
    """The shares that `look` printed in a server's guest."""
    return tuple(ServedShare(lease, int(gpu), boot == "other") for lease, gpu, boot in _SHARE.findall(printed))


def address(text: str) -> str:
    """The same, of an address by which others reach a guest. Raises Refused: a guest may write any text."""
    found = unicast_address(text)
    if found is None:
        raise Refused(f"a guest tells {text[:80]!r}, which is no IP address by which others reach it")
    return str(found)


def reachable(addresses: Sequence[str]) -> str | None:
    """The first of these by which others reach a guest, IPv4 before IPv6; None = there is none."""
    found = []
    for each in addresses:
        try:
            found.append(address(each))
        except Refused:
            continue  # a guest has link-local addresses beside others
    return min(found, key=lambda each: ip_address(each).version, default=None)


def _own_port(own: str) -> str:
    """`PORT` of the share, or empty."""
    return f'PORT=; for each in port-*; do [ "$(readlink "$each")" != {own} ] || PORT="${{each#port-}}"; done'


def _not_ended(own: str) -> str:
    return f'[ ! -e ended/{own} ] || {{ echo "this lease has ended here"; exit 1; }}'


def _ended(own: str) -> str:
    """Last of all: a full disk does not keep anybody from being cut off."""
    return f"mkdir -p ended && find ended -type f -mtime +0 -exec rm -f {{}} + && : > ended/{own}"


def _lease(text: str) -> str:
    if not _LEASE.fullmatch(text):
        raise Refused(f"{text[:80]!r} is no id of a lease")
    return text


def _body(script: str) -> str:
    """A script in a subshell; an empty one does well."""
    return f"{script.strip() or 'true'}\n"


def _export(variables: Mapping[str, str]) -> str:
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def _found(pattern: re.Pattern[str], printed: str, otherwise: str) -> str:
    found = pattern.search(printed)
    if found is None:
        raise StepFailed(otherwise, hint="look at the guest")
    return found[1]
