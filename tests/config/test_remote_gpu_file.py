"""Files of programs that lend GPUs over the network: the one that comes with gpuops, and what is refused."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from operator import attrgetter
from pathlib import Path
from typing import Final

import pytest

from gpuops.errors import GpuopsError, PolicyError, UsageError
from gpuops.extras.lending.pool_file import RemoteProgram, load_program, parse_remote_gpu

TEXT: Final = (Path(__file__).parents[2] / "templates" / "remote-gpu" / "lupine.yaml").read_text(encoding="utf-8")
LUPINE: Final = load_program("lupine")
GIVEN: Final = {
    "grant.server": {"LEASE", "GPU", "PORT", "SERVER_ADDRESS", "MEMORY_MIB", "SECONDS_LEFT", "CLIENT_ADDRESS"},
    "revoke.server": {"LEASE", "GPU", "PORT", "SERVER_ADDRESS"},
    "grant.client": {"LEASE", "SHARES", "PWD", "LD_LIBRARY_PATH"},
    "revoke.client": {"LEASE"},
    "health": {"SERVER_ADDRESS"},
}
METRICS: Final = """\
# TYPE lupine_client_device_memory_used_bytes gauge
lupine_client_device_memory_used_bytes{client_id="10.0.0.9:a:1:7",client_address="10.0.0.9",device_index="0"} 83886080
lupine_client_device_memory_used_bytes{client_id="10.0.0.9:a:1:8",client_address="10.0.0.9",device_index="0"} 5368709120
lupine_host_gpu_memory_total_bytes{device_uuid="GPU-1",device_index="0"} 85520809984
"""
"""In the form that LUPINE's own page shows: a line for each process of a client."""


def run(script: str, directory: Path, *tools: tuple[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a hook with these scripts in place of the programs of those names."""
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in tools:
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": path, **variables}, cwd=directory,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("hook", GIVEN)
def test_the_hooks_of_lupine_are_shell_and_use_only_the_variables_that_they_have(hook: str) -> None:
    script = attrgetter(hook)(LUPINE)
    subprocess.run(["/bin/sh", "-n", "-c", script], check=True)
    assert set(re.findall(r"\$\{?([A-Z][A-Z_0-9]+)", script)) - {"NF"} <= GIVEN[hook], "NF is of awk"


def test_a_lupine_server_starts_with_the_library_path_of_its_image_and_one_client(tmp_path: Path) -> None:
    values = {"LEASE": "a1", "GPU": "1", "PORT": "14835", "SERVER_ADDRESS": "10.0.0.1", "CLIENT_ADDRESS": "10.0.0.9"}
    started = run(
        LUPINE.grant.server, tmp_path, ("systemctl", "exit 3"), ("systemd-run", 'printf "%s\\n" "$@"'),
        **values, SECONDS_LEFT="60", MEMORY_MIB="8192",
    )  # fmt: skip
    options = started.stdout.splitlines()
    assert "--unit=gpuops-lease-a1-1" in options and "--property=RuntimeMaxSec=60" in options
    assert [option for option in options if "IPAddress" in option] == [
        *("--property=IPAddressDeny=any", "--property=IPAddressAllow=10.0.0.9", "--property=IPAddressAllow=10.0.0.1")
    ]
    [libraries] = [option for option in options if option.startswith("--setenv=LD_LIBRARY_PATH=")]
    assert libraries.endswith("/usr/local/nvidia/lib64:/usr/local/cuda/compat:/usr/local/cuda/lib64:/opt/rocm/lib")


@pytest.mark.parametrize("is_intact", [True, False])
def test_a_lupine_client_is_the_one_that_its_server_delivers(tmp_path: Path, is_intact: bool) -> None:
    with zipfile.ZipFile(tmp_path / "delivered", "w") as bundle:
        bundle.writestr("libcuda.so.1", "shim")
    digest = hashlib.sha256((tmp_path / "delivered").read_bytes() if is_intact else b"").hexdigest()
    curl = f"""
        while [ $# -gt 1 ]; do case $1 in --output) cp delivered "$2" ;; --dump-header) headers=$2 ;; esac; shift; done
        printf 'HTTP/1.1 200 OK\\r\\netag: "sha256:{digest}"\\r\\n' > "$headers"; echo "$1" > asked"""
    shares = "10.0.0.1:14833,10.0.0.2:14834"
    granted = run(LUPINE.grant.client, tmp_path, ("curl", curl), ("uname", "echo x86_64"), SHARES=shares, LEASE="a1")
    address = (tmp_path / "asked").read_text().strip()
    assert address == "http://10.0.0.1:14833/.well-known/lupine/client/v1/linux/amd64"
    if not is_intact:
        assert (granted.returncode, granted.stdout) == (1, "wrong ETag\n")
        return
    process = run('. ./env; printf %s "$LUPINE_SERVER $LD_LIBRARY_PATH"', tmp_path, LD_LIBRARY_PATH="/own")
    assert process.stdout == f"{shares} {tmp_path}/lib:/own"


def test_the_health_of_lupine_is_its_own_metrics_of_each_client(tmp_path: Path) -> None:
    for port, share in (("port-14833", "a1.0"), ("port-14834", "b-2.1"), ("port-14835", "ended.0")):
        (tmp_path / port).symlink_to(share)
    (tmp_path / "metrics").write_text(METRICS, encoding="utf-8")
    tools = (
        ("curl", 'case "$*" in *:14833/metrics) cat metrics ;; *) exit 7 ;; esac'),
        ("systemctl", 'case "$*" in *ended*) exit 3 ;; esac'),
    )
    script = LUPINE.health.replace("/opt/lupine/bin/lupine_driver_server", "/bin/sh")
    assert run(script, tmp_path, *tools, SERVER_ADDRESS="10.0.0.1").stdout == "lease a1 0 5200\nlease b-2 1 0\n"
    missing = run(LUPINE.health, tmp_path, *tools, SERVER_ADDRESS="10.0.0.1")
    assert (missing.returncode, missing.stdout) == (1, "no /opt/lupine/bin/lupine_driver_server\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nprogram: lupine", "\nprogram: Lupine", "program: should have at most 50 lower-case letters"),
        ("first: 14833, count: 64", "first: 65500, count: 64", "goes beyond port 65535"),
        ("first: 14833", "first: 80", "ports.first: should be 1024 or more"),
        ("\nhealth: |", "\nhealthy: |", "health: is missing (and 1 more)"),
        ("version: 2\n", "version: 3\n", "version: "),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(PolicyError) as caught:
        parse_remote_gpu(TEXT.replace(old, new, 1), "mine.yaml")
    assert caught.value.message.startswith("mine.yaml: ") and message in caught.value.message
    assert "\n" not in caught.value.message and "lupine.yaml" in (caught.value.hint or "")


def test_a_program_is_named_or_is_a_file(tmp_path: Path) -> None:
    assert isinstance(LUPINE, RemoteProgram)
    with pytest.raises(UsageError, match="it has lupine"):
        load_program("juice")
    (tmp_path / "mine.yaml").write_text(TEXT.replace("program: lupine", "program: mine"), encoding="utf-8")
    assert load_program(str(tmp_path / "mine.yaml")).name == "mine"
    with pytest.raises(GpuopsError, match=r"none\.yaml"):
        load_program(str(tmp_path / "none.yaml"))
