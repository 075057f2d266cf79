"""Commands for the guests of a cluster (`cluster_run.sh`), and the parsing of what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from gpuops.errors import ProtocolError
from gpuops.extras.clusters.launch import MARK, Launch
from gpuops.guest_scripts.commands import shell_command

PART: Final = 256 * 1024
"""Bytes of output that are fetched at once."""
SHOWN: Final = 16 * 1024 * 1024
"""Bytes of output that are fetched at most; a guest keeps no more than that of what is not fetched."""
PREFIX: Final = "gpuops-cluster-run-"
"""Prefix of temporary directories in guests, and of ids of operations."""
HOST_KEYS: Final = tuple(f"/etc/ssh/ssh_host_{kind}_key.pub" for kind in ("ed25519", "ecdsa", "rsa"))
_KEY: Final = re.compile(r"\b((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+={0,2})(?:\s|$)")


def step_command(action: str, launch: Launch, *arguments: str) -> str:
    """Return the command for an action of `cluster_run.sh` that prepares or clears a guest."""
    variables = {f"{MARK}_STEP": launch.mark}
    return shell_command("cluster_run", action, launch.cluster, launch.run, *arguments, variables=variables)


def prepare(launch: Launch, *, first: bool) -> str:
    """Return the command that prepares a guest, the first one with a key pair if the launcher uses SSH."""
    return step_command("prepare_key" if first and launch.over_ssh else "prepare", launch)


def start(launch: Launch, node: int, known_hosts: Sequence[str]) -> str:
    """Return the command that runs the launcher of that node until it ends."""
    port = str(launch.ssh_port) if launch.over_ssh else ""
    files = "".join(f"{line}\n" for line in known_hosts), launch.hostfile
    words = shlex.split(launch.command_lines[node])
    variables = {MARK: launch.mark, **launch.environment}
    arguments = (launch.cluster, launch.run, port, *files, str(PART), str(SHOWN), *words)
    return shell_command("cluster_run", "start", *arguments, variables=variables)


def public_key(text: str) -> str:
    """Return the key of a line that ssh-keygen wrote, without its comment. Raises ProtocolError for another text."""
    match = _KEY.search(text)
    if match is None:
        raise ProtocolError("its guest tells no public key", hint="install openssh-client in the template")
    return match[1]
