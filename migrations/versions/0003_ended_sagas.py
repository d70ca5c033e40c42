"""Ended sagas by the instant of their end, for whoever looks for those that may go."""

import sqlalchemy as sa

from migrations import online

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Build the index; it holds no saga that is under way."""
    ended = sa.text("ended_at IS NOT NULL")
    online.create_index(
        "ix_sagas_ended", "sagas", ["ended_at", "id"], postgresql_where=ended, sqlite_where=ended
    )
