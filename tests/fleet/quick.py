"""python -m tests.fleet.quick runner run: `gpuops` whose runners are six times as impatient as in earnest.

Signs of life, what is taken for dead, looks and how long a database is waited for are a sixth; their order is kept.
Everything else is the product's own: the turns are processes of the real `gpuops`.
"""

from __future__ import annotations

from typing import Final

from gpuops.cli import main
from gpuops.extras.fleet.runner import procrastinate_queue, service

FACTOR: Final = 6.0
_QUEUE: Final = ("SIGN_OF_LIFE_S", "TAKEN_FOR_DEAD_S", "ANSWERS_S", "LOOK_S", "ENDS_S")
_SERVICE: Final = ("LOOK_S", "AWAY_S")

if __name__ == "__main__":
    for module, names in ((procrastinate_queue, _QUEUE), (service, _SERVICE)):
        for name in names:
            setattr(module, name, getattr(module, name) / FACTOR)
    main()
