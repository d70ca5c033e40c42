"""The books: a record, arranged for looking things up, as the invariants do."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from orchestration.contract import AgentContract
from orchestration.definition import Definition
from orchestration.snapshot import LATE
from tasks.proof.record import Effect, Record

Found = Iterator[tuple[str, str, str]]
"""(saga, step, what is wrong)"""


class Books:
    """A record, arranged for looking things up."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.rows = record.rows
        self.sagas = {str(row.id): row for row in self.rows.sagas}
        self.definition: dict[str, Definition] = {
            str(row.id): record.definitions[row.definition_id] for row in self.rows.sagas
        }
        self.steps: dict[str, dict[str, Any]] = defaultdict(dict)
        for row in self.rows.steps:
            self.steps[str(row.saga_id)][row.path] = row
        self.attempts: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in self.rows.attempts:
            self.attempts[str(row.saga_id), row.path].append(row)
        self.open: Counter[tuple[str, str]] = Counter(
            (str(row.saga_id), row.path) for row in self.rows.incidents if row.resolved_at is None
        )
        self.effects: dict[tuple[str, str], list[Effect]] = defaultdict(list)
        for effect in record.effects:
            self.effects[effect.saga_id, effect.step].append(effect)

    def own_steps(self) -> Iterator[tuple[str, Any, AgentContract]]:
        """Yield (saga, step row, contract) of the steps that stand in a workflow."""
        for saga_id, rows in self.steps.items():
            for path, row in rows.items():
                if not path.endswith(LATE):
                    yield saga_id, row, self.definition[saga_id].contract(path)
