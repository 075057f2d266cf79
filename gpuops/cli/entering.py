"""How hosts themselves are entered, by commands that need what vCenter cannot do. Off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gpuops.hostshell.nvidia_smi import NvidiaSmi

KNOWN: Final = Path("~/.ssh/known_hosts")


class Shell(StrEnum):
    """How hosts themselves are asked."""

    NONE = "none"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Entering:
    """Whether hosts themselves are asked, and how."""

    host_shell: Annotated[
        Shell, typer.Option(help="Whether the hosts' own nvidia-smi is asked, and how; their keys must be known.")
    ] = Shell.NONE
    ssh_user: Annotated[str, typer.Option(metavar="NAME", help="Who enters a host.")] = "root"
    ssh_known_hosts: Annotated[Path, typer.Option(metavar="FILE", help="The hosts' SSH keys; no other is trusted.")] = (
        KNOWN
    )
    ssh_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key to enter with; default: the agent's and ~/.ssh.")
    ] = None
    ssh_port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="The port of the hosts' SSH.")] = 22

    def shell(self) -> NvidiaSmi | None:
        """The way in; None = hosts are not entered."""
        if self.host_shell is Shell.NONE:
            return None
        from gpuops.hostshell.nvidia_smi import NvidiaSmi
        from gpuops.hostshell.ssh import Ssh

        return NvidiaSmi(Ssh(self.ssh_user, self.ssh_known_hosts, self.ssh_key, self.ssh_port))
