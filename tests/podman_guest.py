"""A guest of the simulator with a real Podman, and an image that is made of Debian's busybox-static.

The guest's `~/.local/bin/podman` is the machine's podman with storage and state of the guest's own. It enters
namespaces that a process of the guest holds, in which `/run` is a directory of the guest and no cgroup is to be seen:
containers do without, as not every machine lets them have any. In its `/run/cdi` is a CDI specification of these tests,
for which `nvidia.com/gpu=all` is no device but a variable: so the command line is the one of guests with a GPU. The
storage of the machine's own podman is not touched. Processes of containers bear the mark of the guest, and end with it.

Works for root, and for a user who has subordinate ids (`newuidmap`, package uidmap).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from gpuops.sim.server import SimServer, start
from tests.sim.guests.guests_of import Guest

USER, PASSWORD = "ml", "Kept4now"
AUTH: Final = vim.vm.guest.NamePasswordAuthentication(username=USER, password=PASSWORD, interactiveSession=False)
IMAGE: Final = "localhost/lab/busybox:1"
SCENARIO: Final = str(Path(__file__).parent / "sim" / "guests" / "real_guests.yaml")
VM: Final = "vm-01"
BUSYBOX: Final = Path("/bin/busybox")
_APPLETS: Final = ("sh", "cat", "echo", "env", "head", "ls", "mkdir", "sleep", "touch", "seq", "yes")
_MISSING: Final = [each for each in ("podman", "busybox", "unshare", "nsenter", "flock") if shutil.which(each) is None]

needs_podman: Final = pytest.mark.skipif(
    bool(_MISSING) and "CI" not in os.environ,
    reason=f"no {', '.join(_MISSING)}: apt-get install podman busybox-static uidmap",
)

_HOLD: Final = """cd "$HOME/lab"
if [ "$(id -u)" = 0 ]; then f=-m; else f="--map-root-user --map-auto -m"; fi
exec unshare $f /bin/sh -c '
  mount -t tmpfs none /sys/fs/cgroup && mount --bind run /run &&
  mkdir -p /run/cdi && cp cdi.json /run/cdi/nvidia.json &&
  echo $$ > holder.new && mv holder.new holder && exec sleep 86400' > hold.txt 2>&1
"""
_PODMAN: Final = """#!/bin/sh
l="$HOME/lab"
if [ "$(id -u)" = 0 ]; then f=-m; else f="-U -m --preserve-credentials"; fi
exec nsenter -t "$(cat "$l/holder")" $f env CONTAINERS_CONF="$l/containers.conf" @PODMAN@ \\
  --root "$l/storage" --runroot /run/containers --tmpdir /run/libpod --storage-driver vfs "$@"
"""
_CONF: Final = """[containers]
default_ulimits = []
cgroups = "disabled"
env = ["PATH=/bin", "GPUOPS_SIM_GUEST={mark}podman."]
[engine]
lock_type = "file"
events_logger = "none"
"""
_CDI: Final = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["GPU_OF_THESE_TESTS=all"]}}],
}


@dataclass(frozen=True)
class PodmanGuest:
    """The server and the guest."""

    server: SimServer
    guest: Guest

    @property
    def root(self) -> Path:
        """Where the files of the guest lie."""
        return self.server.world.guests.guest(self.guest.vm._moId).root

    @property
    def home(self) -> Path:
        return self.root / "root"

    def shell(self, script: str) -> tuple[int, str]:
        """Exit code and output of a script that is run in the guest."""
        (self.root / "tmp/script").write_text(script, encoding="utf-8")
        directory = self.root / "tmp"
        pid = self.guest.run(f"-c 'sh {directory}/script > {directory}/printed 2>&1'", directory=str(directory))
        code = self.guest.ended(pid).exitCode
        return int(code), (directory / "printed").read_text(encoding="utf-8", errors="replace")

    def podman(self, words: str) -> tuple[int, str]:
        """As the guest's user would run it."""
        return self.shell(f'"$HOME/.local/bin/podman" {words}')

    def containers(self) -> list[str]:
        """The names of all containers, those that have ended too."""
        code, printed = self.podman("ps -a --format '{{.Names}}'")
        assert code == 0, printed
        return printed.split()


@contextmanager
def podman_guest() -> Iterator[PodmanGuest]:
    """The guest with its image. Skips where the kernel refuses containers, with what it says."""
    with start(SCENARIO, clock="virtual") as server:
        service = SmartConnect(**server.login)
        guest = PodmanGuest(server, Guest(server, service, VM, AUTH))
        install(guest)
        code, printed = guest.podman(f"run --rm --network=none {IMAGE} sh -c 'echo it runs'")
        if (code, printed) != (0, "it runs\n"):
            pytest.skip(f"containers do not run here: {printed.strip()[-300:]}")
        yield guest
        Disconnect(service)
        assert server.world.bugs == []


def install(guest: PodmanGuest) -> None:
    """Puts podman, what it needs and the image into the guest. Skips where the kernel makes no namespaces."""
    guest.shell("true")  # its directories are there from then on
    lab = guest.home / "lab"
    (lab / "run").mkdir(parents=True)
    (lab / "cdi.json").write_text(json.dumps(_CDI), encoding="utf-8")
    (lab / "containers.conf").write_text(_CONF.format(mark=guest.guest.mark), encoding="utf-8")
    (lab / "hold").write_text(_HOLD, encoding="utf-8")
    image(lab / "image.tar")
    program = guest.home / ".local/bin/podman"
    program.parent.mkdir(parents=True)
    program.write_text(_PODMAN.replace("@PODMAN@", shutil.which("podman") or "podman"), encoding="utf-8")
    program.chmod(0o755)
    hold(guest)
    code, printed = guest.podman(f'import "$HOME/lab/image.tar" {IMAGE}')
    assert code == 0, printed


def hold(guest: PodmanGuest) -> None:
    """Starts the process that holds the namespaces, as a boot of the guest would. Skips where they are refused."""
    lab = guest.home / "lab"
    (lab / "holder").unlink(missing_ok=True)
    guest.guest.run("-c 'exec sh \"$HOME/lab/hold\"'", directory=str(lab))
    code, _ = guest.shell('n=0; until [ -e "$HOME/lab/holder" ] || [ $n = 50 ]; do n=$((n + 1)); sleep 0.1; done')
    if code or not (lab / "holder").exists():
        pytest.skip(f"namespaces are refused here: {(lab / 'hold.txt').read_text().strip()[-300:]}")


def image(path: Path) -> None:
    """A root file system of busybox alone, as an archive."""
    with tarfile.open(path, "w") as archive:
        for name in ("bin", "tmp", "data", "proc", "sys", "dev", "etc", "run"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        program = tarfile.TarInfo("bin/busybox")
        content = BUSYBOX.read_bytes()
        program.size, program.mode = len(content), 0o755
        archive.addfile(program, io.BytesIO(content))
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
