"""Quick: which mutants are killed by tests without the mark `long`, which `make test` runs.

python -m tests.mutants.quick FILE...   the tests of these files without that mark
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.mutants.table import NIGHTS_TEST, ROOT, Mutant

_PREFIX = "without the mark long: "


class _Collected:
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker("long") is None:
                print(_PREFIX + item.nodeid)


def quick_tests(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, str, bool]]:
    """Return for each mutant the test that kills it, and whether that test has at least one case without `long`.

    A mutant that is judged by nights is killed by the test that plays its first night, if `first` is the seed that
    shows it: `python -m tests.mutants NAME` then counts one night.
    """
    tests = [(mutant, mutant.test or f"{NIGHTS_TEST}[{mutant.night}]") for mutant in mutants]
    files = sorted({test.partition("::")[0] for _, test in tests})
    command = [sys.executable, "-m", "tests.mutants.quick", *files]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    cases = {line.removeprefix(_PREFIX) for line in output.splitlines() if line.startswith(_PREFIX)}
    names = cases | {case.partition("[")[0] for case in cases}
    return ((mutant, test, test in names) for mutant, test in tests)


if __name__ == "__main__":
    sys.exit(pytest.main(["--collect-only", "-qq", "-n", "0", *sys.argv[1:]], plugins=[_Collected()]))
