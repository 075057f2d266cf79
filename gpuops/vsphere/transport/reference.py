"""Reference: how a managed object id may look."""

from __future__ import annotations

import re
from typing import Final

# pyVmomi writes the id into `_this` as it is, unescaped: anything else could carry elements of its own.
REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")
