"""A simulated restore: the database loses its last commits, and operators say so.

They stop all workers, put a backup in the database's place, have every saga ask before it sends
what it may have sent, and start the workers again. The partners and the broker know nothing of it.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from models.states import SagaState
from tasks.proof.database import Backup
from tasks.proof.invariants import Violation
from tasks.proof.world import World

BACKED_UP = timedelta(minutes=2), timedelta(hours=1)
"""When the backup is taken; all sagas have usually been started by then."""
LOST = timedelta(seconds=1), timedelta(minutes=30)
"""How long it is old when it is needed."""
PROMISED = frozenset({"INV-1", "INV-2", "INV-3", "INV-9", "INV-11"})
"""What still holds: outcomes. The rows no longer tell of all that was done."""
FORWARD = frozenset({SagaState.RUNNING, SagaState.COMPLETED})


class Restore:
    """What becomes of one run's database. ``sagas`` is how many must be there to be backed up."""

    def __init__(self, world: World, sagas: int) -> None:
        self.world = world
        self.sagas = sagas
        self.done = False
        self.not_promised: set[str] = set()
        """Sagas that had turned back, or asked a person, in what was lost."""

    def plan(self) -> None:
        """Restore the database once, if that is this run's lot."""
        if self.world.faults.at("database", "restore"):
            after = self.world.dice.between("backup", *BACKED_UP)
            self.world.later(after, self._back_up)

    def _back_up(self) -> None:
        if self.world.away() or len(self.world.ids) < self.sagas:
            return
        after = self.world.dice.between("lost commits", *LOST)
        self.world.later(after, partial(self._restore, self.world.store.backup()))

    def _restore(self, backup: Backup) -> None:
        self.world.faults.hit("database", "restored")
        self.done = True
        self.world.away_until = None
        self.world.fleet.stop()
        self.not_promised = self._beyond_help()
        self.world.store.restore(backup)
        self.world.scheduler.distrust(by="operator", reason="restored the backup")
        self.world.fleet.start()

    def _beyond_help(self) -> set[str]:
        """Return the sagas that may be found going forward although they were not, at last."""
        rows = self.world.rows()
        turned = {str(row.id) for row in rows.sagas if row.state not in FORWARD}
        return turned | {str(row.saga_id) for row in rows.incidents}

    def judge(self, violations: Iterable[Violation]) -> list[Violation]:
        """Return what is wrong in spite of it."""
        if not self.done:
            return list(violations)
        return [
            one
            for one in violations
            if one.invariant in PROMISED and one.saga_id not in self.not_promised
        ]
