"""The PostgreSQL server of the journal's tests."""

from tests.execute.journal.conftest import postgresql as postgresql
