"""A PostgreSQL server of the tests' own."""

from __future__ import annotations

from tests.execute.conftest import postgresql

__all__ = ["postgresql"]
