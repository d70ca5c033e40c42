"""What is recorded: the tables and the legal moves between states."""

from models.attempt import Attempt
from models.base import Base
from models.definition import Definition
from models.incident import Incident
from models.journal import JournalEntry
from models.node import Node
from models.saga import Saga
from models.step import Step

__all__ = [
    "Attempt",
    "Base",
    "Definition",
    "Incident",
    "JournalEntry",
    "Node",
    "Saga",
    "Step",
]
