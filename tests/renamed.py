"""A copy of gpuops in which classes and fields have other names in Python, as after a rename by an editor."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gpuops

RENAMED: Final = {
    "SuspendVm": "PauseVm", "gives_way": "yields_room", "ResumeVm": "WakeVm", "PowerOnVm": "StartVm",
    "ShutDownGuest": "StopGuest", "then_off": "then_stopped", "SetAttribute": "WriteMark", "SetVmDrs": "OverrideDrs",
    "StepCounts": "NightCounts", "planned": "foreseen", "StateDamaged": "StateBroken",
}  # fmt: skip
"""Names in Python, and what they are called in the copy."""


def renamed_copy(folder: Path, names: Mapping[str, str] = RENAMED) -> Path:
    """Make the copy in a new folder. Files without such a name are links."""
    package = Path(gpuops.__file__).parent
    folder.mkdir()
    (folder / "templates").symlink_to(package.parent / "templates")
    shutil.copytree(package, folder / "gpuops", copy_function=os.symlink)
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "ansible_collections" not in path.parts and any(name in source for name in names):
            copy = folder / "gpuops" / path.relative_to(package)
            copy.unlink()
            copy.write_text(_with_other_names(source, names), encoding="utf-8")
    return folder


def running(folder: Path) -> dict[str, str]:
    """The environment of a process that imports the gpuops of that folder, before any other."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def _with_other_names(source: str, names: Mapping[str, str]) -> str:
    """The source with its identifiers renamed; strings and comments stay, but for the expressions in f-strings.

    A field that is stored keeps its stored name: `stored_as` above its class is given it, as a maintainer has to do.
    """
    word = re.compile(rf"\b({'|'.join(names)})\b")

    def renamed(kind: int, text: str) -> str:
        if kind == tokenize.STRING and "f" in text[:2].lower():  # one token before Python 3.12
            return word.sub(lambda name: names[name[0]], text)
        return names.get(text, text) if kind == tokenize.NAME else text

    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return _with_stored_names(tokenize.untokenize((kind, renamed(kind, text)) for kind, text, *_ in tokens), names)


def _with_stored_names(source: str, names: Mapping[str, str]) -> str:
    """The source where `stored_as` above a class has the earlier name of each renamed field that it does not name."""
    earlier_names = {after: before for before, after in names.items()}
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        fields = {ast.unparse(statement.target) for statement in node.body if isinstance(statement, ast.AnnAssign)}
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "stored_as":
                unnamed = fields & earlier_names.keys() - {keyword.arg for keyword in call.keywords}
                name = call.args[0]  # what is inserted right after the first argument needs no look at commas behind it
                line, end = (name.end_lineno or 0) - 1, name.end_col_offset or 0
                added = "".join(f', {field}="{earlier_names[field]}"' for field in sorted(unnamed))
                lines[line] = lines[line][:end] + added + lines[line][end:]
    return "".join(lines)
