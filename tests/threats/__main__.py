"""python -m tests.threats [NAME|THREAT...]   does each test go red without its control, and how fast?"""

from __future__ import annotations

import sys

from tests.threats.remove import play
from tests.threats.table import removals

if __name__ == "__main__":
    missed = 0
    for end in play(removals(sys.argv[1:])):
        print(end, flush=True)
        missed += bool(end.why)
    print(f"{missed} of {len(removals(sys.argv[1:]))} controls can be taken away unseen")
    sys.exit(1 if missed else 0)
