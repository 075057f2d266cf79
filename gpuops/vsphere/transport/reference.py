"""Reference: how a managed object id may look."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}"
_OF_A_SESSION: Final = r"session\[[0-9A-Fa-f-]{1,40}\]"
"""How vCenter begins the ids of views, collectors and filters, which live as long as the session."""

# pyVmomi writes the id into `_this` as it is, unescaped: anything else could carry elements of its own.
REFERENCE: Final = re.compile(f"(?:{_OF_A_SESSION})?{_PLAIN}")
