"""Several databases for one application: which of them a saga is in.

A shard is a whole installation: a database, a broker (or a virtual host, or a number of a Redis
database), workers, a supervisor. Nothing of one knows of another, so nothing is shared that could
give out. Whoever starts sagas has a scheduler of each.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any
from uuid import UUID

from sqlalchemy.exc import InterfaceError, OperationalError

from orchestration import views
from orchestration.definition import Workflow
from orchestration.errors import NotFoundError
from orchestration.handle import Handle
from orchestration.scheduler import Scheduler


class Shards(Mapping[str, Scheduler]):
    """The schedulers by the names of their shards; the names decide where a key is at home.

    A name is for ever: another URL may stand behind it, but under another name its keys would be
    at home elsewhere. The same holds for a name that is added, for its share of the keys: a start
    that is repeated afterwards would begin a second saga. See docs/scaling.md.
    """

    def __init__(self, schedulers: Mapping[str, Scheduler]) -> None:
        if not schedulers:
            raise ValueError("shards: at least one is needed, got none")
        self._schedulers = dict(schedulers)

    def __getitem__(self, name: str) -> Scheduler:
        return self._schedulers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schedulers)

    def __len__(self) -> int:
        return len(self._schedulers)

    def home(self, key: str) -> str:
        """Return the name of the shard on which ``key`` is at home.

        It is the one whose hash together with the key is the highest (rendezvous hashing). So a
        further name takes its share from each of the others, and nothing else moves.
        """
        return max(self._schedulers, key=lambda name: (_weight(name, key), name))

    def start(self, workflow: Workflow | str, input: Any = None, *, key: str) -> Handle:  # noqa: A002
        """Start a saga where its key is at home; see ``Scheduler.start``.

        A start in the caller's own transaction has no choice: it is ``shards[name].start(...)``,
        where ``name`` is the database that the transaction is in.
        """
        return self[self.home(key)].start(workflow, input, key=key)

    def of_saga(self, saga_id: UUID) -> str:
        """Return the name of the shard that has a saga.

        Each is asked in turn, by its primary key; whoever asks often keeps the name beside the id.
        Raises ``NotFoundError`` if none has it, or what a shard failed with that may have it.
        """
        away: Exception | None = None
        for name, scheduler in self.items():
            try:
                with scheduler.store.reading() as connection:
                    views.saga_state(connection, saga_id)
            except NotFoundError:
                continue
            except (OperationalError, InterfaceError) as error:
                away = error
            else:
                return name
        msg = f"there is no saga {saga_id} on {', '.join(self)}"
        raise away or NotFoundError(msg)


def _weight(name: str, key: str) -> bytes:
    """Return a hash that is the same in every process, unlike Python's own."""
    return blake2b(f"{len(name)}:{name}{key}".encode(), digest_size=8).digest()
