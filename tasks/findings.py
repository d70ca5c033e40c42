"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum

ONLY_TIME = "only time is lost: a sweep sends again whatever was not taken"


class Level(StrEnum):
    """How bad a finding is. A note is what could not be seen, or is worth knowing."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at: if something is wrong, in which setting, why, what to do."""

    level: Level
    about: str
    text: str
    setting: str = ""
    why: str = ""
    remedy: str = ""


def ok(about: str, text: str) -> Finding:
    """Return what is as it should be."""
    return Finding(level=Level.OK, about=about, text=text)


def note(about: str, text: str) -> Finding:
    """Return what is worth knowing and may be right."""
    return Finding(level=Level.NOTE, about=about, text=text)


def warning(
    about: str, text: str, *, setting: str = "", why: str = "", remedy: str = ""
) -> Finding:
    """Return what costs something and lets everything run."""
    return Finding(
        level=Level.WARNING, about=about, text=text, setting=setting, why=why, remedy=remedy
    )


def error(about: str, text: str, *, setting: str = "", why: str = "", remedy: str = "") -> Finding:
    """Return what does not work, or does not keep what it promises."""
    return Finding(
        level=Level.ERROR, about=about, text=text, setting=setting, why=why, remedy=remedy
    )
