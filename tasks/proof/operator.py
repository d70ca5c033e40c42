"""The operator of a simulated world: resolves what waits for a person, and never guesses.

He looks into the partners' books, as a person would ask on the telephone, and settles the matter
there before he says in the system what has become of it.
"""

from typing import Any
from uuid import UUID

from models.states import Direction, StepState
from orchestration.errors import RefusedError
from orchestration.events import Remedy
from orchestration.safety import Position, positions
from orchestration.snapshot import LATE, idempotency_key
from tasks.proof.entry import Entry
from tasks.proof.partner import Partner
from tasks.proof.record import Rows
from tasks.proof.world import World


class Operator:
    """One person with a telephone."""

    def __init__(self, world: World, partners: dict[str, Partner]) -> None:
        self.world = world
        self.partners = partners
        self.position = positions(world.workflow)

    def look(self, rows: Rows) -> int:
        """Resolve every halted step; return how many there were."""
        halted = [row for row in rows.steps if row.state == StepState.HALTED]
        turned_back = {row.id for row in rows.sagas if row.abort}
        for row in halted:
            try:
                self._resolve(row, turned_back=row.saga_id in turned_back)
            except RefusedError:
                if self._is_halted(row):
                    raise  # Otherwise what was said of another step has settled this one, too.
        return len(halted)

    def _is_halted(self, row: Any) -> bool:
        now = self.world.store.step(str(row.saga_id), row.path)
        return bool(now.state == StepState.HALTED)

    def _resolve(self, row: Any, *, turned_back: bool) -> None:
        saga_id, name = row.saga_id, row.path.partition("~")[0]
        partner = self.partners[row.agent]
        keys = [
            idempotency_key(saga_id, name, Direction.FORWARD, number)
            for number in range(row.incarnation + 1)
        ]
        entries = [partner.entries.setdefault(k, Entry(k, str(saga_id), name)) for k in keys]
        if row.direction == Direction.BACKWARD or row.path.endswith(LATE):
            for entry in entries:
                partner.undo_by_hand(entry)
            self._say(saga_id, row.path, Remedy.COMPENSATED)
            return
        if self._wants_a_retry(row):
            return
        standing = [entry for entry in entries if entry.standing]
        for entry in entries:
            partner.shut_by_hand(entry)
        if standing:
            self._say(saga_id, row.path, Remedy.SUCCEEDED, result={"made": standing[-1].made})
        elif (
            self.position[name] is Position.AFTER and not turned_back
        ) or not partner.contract.effect:
            if partner.contract.effect:
                partner.do_by_hand(entries[-1])
            self._say(saga_id, row.path, Remedy.SUCCEEDED, result={"made": "by hand"})
        else:
            self._say(saga_id, row.path, Remedy.FAILED)

    def _wants_a_retry(self, row: Any) -> bool:
        """Try half of the time to have it repeated; whether that is safe, the system must say."""
        if self.world.dice.roll(f"retry {row.path} {row.attempt}") < 0.5:  # noqa: PLR2004 - half
            return False
        try:
            self._say(row.saga_id, row.path, Remedy.RETRY)
        except RefusedError:
            return False
        return True

    def _say(self, saga_id: UUID, path: str, remedy: Remedy, **more: Any) -> None:
        self.world.scheduler.resolve(
            saga_id, path, remedy, by="operator", reason="asked the partner", **more
        )
        self.world.faults.hit("person", str(remedy))
