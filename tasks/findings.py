"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    text: str
