"""The peers as processes: govc asked one question at a time, vcsim running for as long as a test needs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.sim.wire import certificates
from tests.peers.edit_model import edit

BINARIES = Path(__file__).parent / "bin"
USERNAME = "administrator@vsphere.local"
PASSWORD = "vcsim-says-yes"
# The counts `gpu_model.py` describes: one cluster with four hosts and twelve VMs.
MODEL = ("-cluster=1", "-host=4", "-standalone-host=0", "-vm=12", "-ds=2", "-pg=1")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A vCenter to talk to, with the CA that vouches for it."""

    url: str
    username: str
    password: str = field(repr=False)
    ca_file: Path
    pid: int = 0
    """Of the server's process, where it has one of its own."""


class Refusal(Exception):
    """What govc printed when it failed."""

    def __init__(self, arguments: tuple[str, ...], message: str) -> None:
        super().__init__(f"govc {' '.join(arguments)}: {message}")
        self.message = message


@dataclass(frozen=True, slots=True)
class Govc:
    """The govc binary, bound to one vCenter; it verifies the server's certificate."""

    endpoint: Endpoint
    home: Path
    over_json: bool = False

    def __call__(self, *arguments: str) -> str:
        """What govc prints for these arguments; raises Refusal with its message when it exits non-zero."""
        completed = subprocess.run(
            [BINARIES / "govc", *arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        if completed.returncode:
            raise Refusal(arguments, (completed.stderr or completed.stdout).strip())
        return completed.stdout

    def json(self, command: str, *arguments: str) -> Any:
        """The JSON that govc prints for these arguments."""
        return json.loads(self(command, "-json", *arguments))

    def documents(self, command: str, *arguments: str) -> list[Any]:
        """The JSON documents that govc prints one after the other, as `object.collect` does."""
        text, decoder, documents = self(command, "-json", *arguments).lstrip(), json.JSONDecoder(), []
        while text:
            document, end = decoder.raw_decode(text)
            documents.append(document)
            text = text[end:].lstrip()
        return documents

    def lines(self, *arguments: str) -> list[str]:
        """The lines that govc prints for these arguments."""
        return self(*arguments).splitlines()

    def environment(self) -> Mapping[str, str]:
        """What govc finds in its environment: this vCenter, and nothing else."""
        # Nothing of the caller's environment: a GOVC_* variable of the developer's must not reach the test.
        json_wire = {"GOVC_VI_JSON": "1", "GOVC_VIM_VERSION": "8.0.3.0"} if self.over_json else {}
        return {
            **json_wire,
            "HOME": str(self.home),
            "GOVC_URL": self.endpoint.url,
            "GOVC_USERNAME": self.endpoint.username,
            "GOVC_PASSWORD": self.endpoint.password,
            "GOVC_TLS_CA_CERTS": str(self.endpoint.ca_file),
            "GOVC_PERSIST_SESSION": "false",
        }


@contextmanager
def running_vcsim(directory: Path, *flags: str) -> Iterator[Endpoint]:
    """A vcsim on a free port of loopback, with a certificate of its own CA; it ends with the block.

    It ends with this process too, however that ends: vcsim exits when its standard input closes.
    """
    server_certificates = certificates.create(directory)
    command = [
        str(BINARIES / "vcsim"),
        *flags,
        f"-username={USERNAME}",
        f"-password={PASSWORD}",
        f"-tlscert={server_certificates.chain_file}",
        f"-tlskey={server_certificates.key_file}",
    ]
    with (
        (directory / "vcsim.log").open("w+", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            env={"TMPDIR": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        ) as server,
    ):
        try:
            assert server.stdout is not None
            announced = server.stdout.readline()  # one line once it listens; none when it could not start
            if not announced:
                log.seek(0)
                raise RuntimeError(f"vcsim did not start: {log.read()}")
            announcement = json.loads(announced)
            yield Endpoint(announcement["url"], USERNAME, PASSWORD, server_certificates.ca_file, announcement["pid"])
        finally:
            server.terminate()


def save_gpu_inventory(directory: Path) -> Path:
    """The folder for `vcsim -load`: vcsim's own inventory, saved by govc and given GPUs."""
    inventory = directory / "gpu-inventory"
    with running_vcsim(directory, *MODEL) as endpoint:
        Govc(endpoint, directory)("object.save", "-d", str(inventory))
    edit(inventory)
    return inventory
