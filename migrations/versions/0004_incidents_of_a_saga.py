"""Incidents by their saga: without it, each saga that goes is looked for in all of them."""

from migrations import online

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Build the index; few sagas ever have an incident."""
    online.create_index("ix_incidents_saga_id", "incidents", ["saga_id"])
