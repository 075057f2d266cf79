"""Every text of a parameter reaches a script as it is, and no shell runs a part of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest

from gpuops.extras.jobs import guest_container as job
from gpuops.guest_scripts import script_commands
from gpuops.guest_scripts.script_commands import one_line_command, powershell_command, script_text, shell_command
from tests.guest_scripts.test_job import HOSTILE

SHELLS = [words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(words[0])]
PRINT = 'printf "%s\\0" "$HOSTILE" "$@"\n# a \\n, a \\\\ and an "end"\n'


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_parameters_reach_a_script_as_they_are(
    shell: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_commands, "script_text", lambda name: PRINT if name == "printing.sh" else "")
    monkeypatch.setattr(script_commands, "SHELL", shell[0] if len(shell) == 1 else "/bin/sh")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for text in HOSTILE:
        command = shell_command("printing", *HOSTILE, variables={"HOSTILE": text})
        printed = subprocess.run([*shell, "-c", command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        assert printed.stdout.decode().split("\0")[:-1] == [text, *HOSTILE]
    line = one_line_command("printing", [text for text in HOSTILE if "\n" not in text])
    assert "\n" not in line
    printed = subprocess.run([*shell, "-c", line], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert printed.stdout.decode().split("\0")[1:-1] == [text for text in HOSTILE if "\n" not in text]
    assert list(tmp_path.iterdir()) == []


def test_texts_of_powershell_are_literals() -> None:
    script = b64decode(powershell_command("check_guest", ["a", "'; reboot; '"]).rpartition(" ")[2]).decode("utf-16-le")
    assert script.endswith("\n} 'a','''; reboot; '''")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("path", sorted(Path(script_commands.__file__).parent.glob("*.sh")), ids=lambda path: path.name)
def test_every_shell_can_read_each_script(shell: list[str], path: Path) -> None:
    assert subprocess.run([*shell, "-n", path], capture_output=True, check=False).stderr == b""


def test_the_sizes_of_a_job_s_output_are_those_of_its_script() -> None:
    sizes = dict(re.findall(r"^(part_bytes|head_parts|tail_bytes)=(\d+)$", script_text("job_container.sh"), re.M))
    assert sizes == {
        "part_bytes": str(job.PART),
        "head_parts": str(job.HEAD_PARTS),
        "tail_bytes": str(job.TAIL),
    }
