"""The templates that come with gpuops: policies, requests, roles, units of systemd, reports.

In the sources they are the folder `templates`; the wheel carries that folder in the Ansible collection, whose playbooks
use some of them. The policies of the simulated scenarios, by which the manual's pages show a night, are templates too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from gpuops.files.file import parse_json

FOLDER: Final = "templates"
"""Where the manual's examples expect them."""
_ROOT: Final = Path(__file__).parents[2]
_PLACES: Final = (_ROOT / "ansible_collections" / "gpuops" / "vsphere" / FOLDER, _ROOT / FOLDER)
_SCENARIOS: Final = Path(__file__).parents[1] / "sim" / "scenarios"


@cache
def templates() -> Mapping[str, Path]:
    """Return the file of each template by its name below the folder: `policy.yaml`, `roles/night.yaml`."""
    root = next(place for place in _PLACES if place.is_dir())
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    paths |= {path.name: path for path in _SCENARIOS.glob("*-policy.yaml")}
    return dict(sorted(paths.items()))


def describe_template(text: str) -> str:
    """Return the description in a template: its first comment without the comment marks, or its `description`."""
    first = text.lstrip().partition("\n")[0]
    if first.startswith("{") and not first.startswith("{#"):
        return str(parse_json(text)["description"])
    for begin, end in (("{#", "#}"), ("#", "")):
        if first.startswith(begin):
            return first.removeprefix(begin).rstrip("-" + end).strip().removesuffix(":")
    return ""


def named_by(path: Path) -> str | None:
    """Return the template that a path of the manual's examples means: `templates/policy.yaml` is `policy.yaml`."""
    parts = path.parts
    name = "/".join(parts[parts.index(FOLDER) + 1 :]) if FOLDER in parts else ""
    return name if name in templates() else None
