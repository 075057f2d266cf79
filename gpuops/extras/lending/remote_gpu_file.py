"""Programs that lend GPUs over the network, read from YAML and checked.

`templates/remote-gpu` has the programs that come with gpuops. A pool names one of them, or the path of another file.
The file holds shell commands for guests: anyone who can write it can run commands there as the login for guests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuops.config.decoding import read_as
from gpuops.errors import PolicyError, UsageError
from gpuops.extras.lending.remote_gpu import PROGRAM_NAME, RemoteProgram
from gpuops.files.file import templates
from gpuops.files.private_file import replaceable
from gpuops.files.yaml_file import parse_yaml, read_text

FOLDER: Final = "remote-gpu"
_HINT: Final = "templates/remote-gpu/lupine.yaml shows every key, with comments"


def known_programs() -> tuple[str, ...]:
    """Return the names of the programs that come with gpuops."""
    return tuple(Path(name).stem for name in templates() if name.startswith(f"{FOLDER}/"))


def is_known_name(text: str) -> bool:
    """Whether the text has the form of a program's name; any other text is the path of a file."""
    return PROGRAM_NAME.fullmatch(text) is not None


def load_program(name: str) -> RemoteProgram:
    """Return the program with this name, or from the file at this path. Raises PolicyError, UsageError."""
    if not is_known_name(name):
        path = Path(name)
        text = read_text(path)
        if (opening := replaceable(path)) is not None:  # other machines may write the book
            message = f"{path} is not used, for its scripts run in guests: {opening.why}"
            raise UsageError(message, hint=opening.fix)
        return parse_remote_gpu(text, name)
    if name not in known_programs():
        message = f"no program {name!r} comes with gpuops, which knows {', '.join(known_programs())}"
        raise UsageError(message, hint=f"name a file of your own by its path: ./{name}.yaml")
    return parse_remote_gpu(read_text(templates()[f"{FOLDER}/{name}.yaml"]), name)


def parse_remote_gpu(text: str, name: str) -> RemoteProgram:
    """Return the program of a YAML text; errors call it `name`. Raises PolicyError."""
    content = parse_yaml(text, name)
    if isinstance(content, dict) and content.get("version") == 1:
        raise PolicyError(f"{name}: version 1 had scripts that gpuops no longer runs", hint=_HINT)
    return read_as(RemoteProgram, content, name, _HINT)
