"""`gpuops --help` beside the bare import of what draws it, typer and rich's tables; `inventory` of a simulated vCenter.

A command line is started hundreds of times a day, by people and by shells asking for completion. Whatever else the
program imports (pyVmomi alone is 150 ms) must not be on this path.
"""

from __future__ import annotations

import os

from tests.bench.measure import Contender, interleave, median_cpu_s, paired_ratio, python
from tests.bench.verdict import Figure, Result

ROUNDS = 11
BUDGET_RATIO = 1.7
LAB_S = 0.8
HEAVY = (
    "pyVmomi",
    "lxml",
    "ansible",
    "sqlalchemy",
    "pydantic",
    "yaml",
    "cryptography",
    "numpy",
    "msgspec",
    "prometheus_client",
)


def run() -> Result:
    """CPU of `gpuops --help` as a multiple of `python -c "import typer, rich.table"`, and what it imports.

    The CPU of `gpuops inventory --vcenter sim:lab` is that of the simulator's start and of the read.
    """
    # Completion scripts and terminals differ by environment; the help text is drawn without colour and at one width.
    plain = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    gpuops = python("gpuops --help", "-m", "gpuops", "--help")
    imports = python("import typer, rich.table", "-c", "import typer, rich.table")
    bare = python("python -c pass", "-c", "pass")
    lab = python("gpuops inventory --vcenter sim:lab", "-m", "gpuops", "inventory", "--vcenter", "sim:lab")
    contenders = [Contender(c.name, c.command, plain) for c in (bare, imports, gpuops, lab)]
    for contender in contenders:
        contender.run()  # compiled files and the page cache, for all alike
    rounds = interleave(contenders, ROUNDS)
    return Result(
        "gpuops --help",
        (
            Figure(
                "CPU of `gpuops --help` / import of typer and rich.table",
                paired_ratio(rounds, gpuops.name, imports.name),
                "x",
                BUDGET_RATIO,
            ),
            Figure(f"CPU of `{lab.name}`", median_cpu_s(rounds, lab.name), "s", LAB_S),
            Figure("heavy modules imported by `gpuops --help`", float(_heavy_imports()), "modules", 0.0),
        ),
        rounds,
    )


def _heavy_imports() -> int:
    probe = (
        "import json, runpy, sys\n"
        "sys.argv = ['gpuops', '--help']\n"
        "try:\n    runpy.run_module('gpuops', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        f"print(json.dumps({{'heavy': [m for m in {HEAVY!r} if m in sys.modules]}}))"
    )
    return len(python("imports of gpuops --help", "-c", probe).run().said["heavy"])
