"""`gpuops explain`: what a key of a file means that people write."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Final

import typer

from gpuops.cli.first_steps.schema import INPUTS, input_schema
from gpuops.console import output
from gpuops.console.spread import spread
from gpuops.errors import UsageError

_TEMPLATES: Final = {
    "cluster": "cluster.yaml",
    "config": "site.toml",
    "jobs": "jobs.yaml",
    "mig-layout": "mig-layout.yaml",
    "policy": "policy.yaml",
    "pool": "pool.yaml",
    "remote-gpu": "remote-gpu/lupine.yaml",
    "requests": "requests.yaml",
    "role-file": "roles/night.yaml",
    "what-if-changes": "what-if.yaml",
    "workloads": "workloads.yaml",
}
"""The template in which an example of each key stands."""


def files(incomplete: str) -> list[str]:
    return [name for name in INPUTS if name.startswith(incomplete)]


@spread
def explain(
    key: Annotated[
        str, typer.Argument(metavar="FILE[.KEY]...", help="policy, or policy.pools.idle.", autocompletion=files)
    ],
) -> None:
    """Explain a key of a file that people write: what it means, its type, its default, and an example.

    A file is called case, cluster, config, jobs, mig-layout, policy, pool, remote-gpu, requests, role-file,
    scenario, what-if-changes or workloads. Connects to nothing.

    \b
    Examples:
      gpuops explain policy
      gpuops explain policy.pools.idle
      gpuops explain config.targets.host
    """
    from gpuops.config.explanation import explain as explain_key
    from gpuops.files.file import read_text, templates
    from gpuops.report.first_steps.explain import ExplainDocument, explain_text

    file, *words = [word for word in key.replace("[]", "").split(".") if word not in ("toml", "yaml", "yml")]
    name = _file_named(file)
    template = read_text(templates()[_TEMPLATES[name]]) if name in _TEMPLATES else ""
    explanation = explain_key(name, [word for word in words if not word.isdigit()], input_schema(name), template)
    output.show(explain_text(explanation), ExplainDocument.made_of(explanation))


def _file_named(word: str) -> str:
    """Return the file with that name; `pools`, `roles` and `changes` are accepted too. Raises UsageError."""
    singular = word.removesuffix("s")
    matches = [name for name in INPUTS if singular in (part.removesuffix("s") for part in (name, *name.split("-")))]
    if word in INPUTS or len(matches) == 1:
        return word if word in INPUTS else matches[0]
    near = get_close_matches(word, INPUTS, n=5, cutoff=0.5)
    did_you_mean = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(f"there is no file {word!r}{did_you_mean}", hint=f"files: {', '.join(INPUTS)}")
