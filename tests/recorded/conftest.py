"""The PostgreSQL server that tests of the journal share."""

from __future__ import annotations

from tests.execute.conftest import postgresql

__all__ = ["postgresql"]
