"""A supervisor that is watched: whatever it cannot decide is a finding, not a line in a log."""

from dataclasses import dataclass
from typing import Any

from orchestration.supervisor import Supervisor


@dataclass(frozen=True)
class Undecided:
    """What a sweep found and could not decide, and the error's text."""

    saga_id: str
    step: str
    text: str


class WatchedSupervisor(Supervisor):
    """The real one; it keeps in ``undecided`` what it would only have logged."""

    def __init__(self, *given: Any, undecided: list[Undecided], **more: Any) -> None:
        super().__init__(*given, **more)
        self.undecided = undecided

    def not_decided(self, found: Any, error: Exception) -> None:
        """Keep it; ``found`` is a saga's id, or has one."""
        saga_id = str(getattr(found, "saga_id", found))
        text = f"a sweep could not decide {found}: {type(error).__name__}: {error}"
        self.undecided.append(Undecided(saga_id, getattr(found, "path", ""), text))
