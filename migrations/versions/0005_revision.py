"""How often a saga has been decided about, so that it can be decided about without a lock."""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; no row is rewritten, and the release before runs on without it."""
    if not online.has_column("sagas", "revision"):
        op.add_column(
            "sagas", sa.Column("revision", sa.Integer(), nullable=False, server_default="0")
        )
