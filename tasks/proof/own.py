"""A user's own agents and his own fake partner, in the place of the model's.

His functions run as they are. Only the wire is not theirs: whether a request arrives, when, and
whether its reply comes back. That is decided in ``World.request``, which his partner puts around
whatever it does; where it does not, only crashes before and after his agents are tried.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Protocol

from models.states import Operation
from orchestration.contract import MARGIN, AgentContract
from orchestration.errors import ConfigurationError
from orchestration.signals import PermanentFailure, RetryLater, Unclear
from tasks.agent import Agent, Call
from tasks.proof import world as simulated
from tasks.proof.partner import Partner
from tasks.proof.record import Effect
from tasks.proof.strand import Strand

METHODS = ("reset", "effects")
LONGEST_ON_THE_WAY = timedelta(hours=12)
LATE, LOST, REPLY_LOST = "late", "lost", "reply-lost"


class World:
    """What a partner of one's own is told of the world around it, anew in each run."""

    def __init__(self, world: simulated.World, *, tells: bool = False) -> None:
        self._world = world
        self.fault = ""
        """What befalls the next request."""
        self.courier: Strand | None = None
        """Carries the next request, which arrives late."""
        self.tells = tells
        """Whether the partner says at all when a request comes in."""

    def now(self) -> datetime:
        """Return the present of the run; the time that the machine shows has no meaning in it."""
        return self._world.now

    @contextmanager
    def request(self, lost: Exception | None = None) -> Iterator[None]:
        """Stand around what the partner does about one request.

        The request may not arrive, or hours late, and the reply may not come back: then ``lost`` is
        raised, or a ``TimeoutError``, as the client library would do it.
        """
        self.tells = True
        fault, self.fault = self.fault, ""
        courier, self.courier = self.courier, None
        if courier is not None:
            courier.hold()
        elif fault in {LOST, LATE}:
            raise lost or TimeoutError("timed out")
        yield
        if courier is None:
            self._world.reach("p6")
        if fault == REPLY_LOST:
            raise lost or TimeoutError("the reply was lost")


class Fake(Protocol):
    """A fake partner: one object with the books of everything that was done."""

    def reset(self, world: World) -> None:
        """Forget everything; a new run begins."""

    def effects(self) -> Iterable[tuple[str, str, str, int]]:
        """Return (key, saga id, step, how often undone) of each effect, in the order of making.

        Nothing is ever taken out of it.
        """


@dataclass
class Said:
    """One call of one of the agent's functions, and what the partner's books say of it."""

    at: datetime
    saga_id: str
    step: str
    operation: Operation
    attempt: int
    key: str
    word: str = ""
    """What it returned or raised: the name of the class."""
    text: str = ""
    value: Any = None
    made: list[Effect] = field(default_factory=list)
    undone: list[Effect] = field(default_factory=list)
    standing: list[Effect] = field(default_factory=list)
    """What stood of its step afterwards."""
    late: bool = False
    """It was on its way for a while, and nobody waits for it any more."""


class OwnBooks:
    """What the fake's books hold, since when, and who was calling."""

    def __init__(self, fake: Fake, world: simulated.World, *, tells: bool) -> None:
        self.fake = fake
        self.place = world
        self.world = World(world, tells=tells)
        self.effects: list[Effect] = []
        self.undone: list[int] = []
        self.said: list[Said] = []
        with _answering("reset"):
            fake.reset(self.world)

    def read(self) -> tuple[list[Effect], list[Effect]]:
        """Return what was made and what was undone since this was last asked."""
        made, undone, count = [], [], 0
        with _answering("effects"):
            lines = list(self.fake.effects())
        for key, saga_id, step, times in map(_entry, lines):
            if count == len(self.effects):
                effect = Effect(key=key, saga_id=saga_id, step=step, at=self.place.now)
                self.effects.append(effect)
                self.undone.append(0)
                made.append(effect)
            if times > self.undone[count]:
                effect = self.effects[count]
                effect.undone_at = effect.undone_at or self.place.now
                self.undone[count] = times
                undone.append(effect)
            count += 1
        if count < len(self.effects):
            raise ConfigurationError("--partner: effects() must keep what was undone, and say so")
        return made, undone

    def often_undone(self) -> list[tuple[Effect, int]]:
        """Return the effects that were undone more than once."""
        pairs = zip(self.effects, self.undone, strict=True)
        return [(effect, times) for effect, times in pairs if times > 1]


@contextmanager
def _answering(method: str) -> Iterator[None]:
    """Turn what the fake raises by mistake into a line about it."""
    try:
        yield
    except Exception as error:
        text = f"--partner: {method}() raised {type(error).__name__}: {error}"
        raise ConfigurationError(text) from error


def _entry(given: Any) -> tuple[str, str, str, int]:
    try:
        key, saga_id, step, undone = given
        return str(key), str(saga_id), str(step), int(undone)
    except (TypeError, ValueError):
        text = f"--partner: effects() must give (key, saga id, step, undone), got {given!r}"
        raise ConfigurationError(text) from None


class OwnPartner(Partner):
    """What stands behind one of the user's agents: its part of the books."""

    def __init__(self, contract: AgentContract, books: OwnBooks, steps: frozenset[str]) -> None:
        super().__init__(contract, books.place)
        self.books = books
        self.steps = steps

    @property
    def effects(self) -> list[Effect]:
        """Everything that was ever done for the steps of this agent."""
        self.books.read()
        return [effect for effect in self.books.effects if effect.step in self.steps]

    def fault(self, call: Call[Any], operation: Operation) -> str:
        """Note a call; return what befalls it."""
        fault = self._fault(call, operation)
        self._note(call, operation)
        return fault

    def send_late(self, call: Call[Any], arrive: Callable[[], Any]) -> None:
        """Let a request arrive after a while, before its key may be forgotten."""

        def act() -> None:
            self.on_the_way -= 1
            arrive()

        self.on_the_way += 1
        longest = LONGEST_ON_THE_WAY if self.contract.key_retention is None else MARGIN * 0.9
        self.place.later(self._delay(call, longest / 12, longest), act)


class OwnAgent(Agent):
    """The user's agent, between a process that may die and a wire that may fail."""

    def __init__(self, agent: Agent, partner: OwnPartner) -> None:
        self.action = agent.action
        self.contract = agent.contract
        self.functions = agent.functions
        self.result_type = agent.result_type
        self.input_type = agent.input_type
        self.partner = partner
        self.books = partner.books

    def invoke(self, operation: Operation, call: Call[Any], *args: Any) -> Any:
        """Run one of the agent's functions, unless something befalls it before."""
        place, world = self.partner.place, self.books.world
        fault = self.partner.fault(call, operation)
        place.reach("send")
        match fault:
            case "refused":
                raise PermanentFailure("the partner refuses")
            case "busy":
                raise RetryLater("the partner is busy", delay=timedelta(seconds=5))
            case "error-before":
                raise ConnectionError("no connection")
            case "unclear":
                return Unclear("the partner gives no clear answer")
        if fault == LATE:
            self._send(operation, call, args)
        world.fault = fault
        try:
            value = self._run(operation, call, args)
        finally:
            world.fault = ""
        place.reach("p6")
        return value

    def _run(
        self, operation: Operation, call: Call[Any], args: tuple[Any, ...], *, late: bool = False
    ) -> Any:
        """Call the function, and write down what it says and what the books say."""
        self.books.read()
        said = Said(
            self.books.place.now, call.saga_id, call.step, operation, call.attempt,
            call.key, late=late,
        )  # fmt: skip
        self.books.said.append(said)
        try:
            value = super().invoke(operation, call, *args)
        except Exception as error:
            said.word, said.text = type(error).__name__, f"raised {type(error).__name__}: {error}"
            raise
        else:
            said.word, said.text = type(value).__name__, f"returned {value!r}"
            said.value = value
            return value
        finally:
            said.at = self.books.place.now
            said.made, said.undone = self.books.read()
            said.standing = [
                effect
                for effect in self.books.effects
                if (effect.saga_id, effect.step) == (call.saga_id, call.step)
                and effect.undone_at is None
            ]

    def _send(self, operation: Operation, call: Call[Any], args: tuple[Any, ...]) -> None:
        """Send a request now that arrives later; without ``World.request`` none is ever late."""

        def run() -> None:
            with suppress(Exception):  # Nobody waits for it any more.
                self._run(operation, call, args, late=True)

        world = self.books.world
        if not world.tells:
            return
        strand = world.courier = Strand(run)
        strand.resume()
        world.courier = None
        if not strand.ended:
            self.books.place.held.append(strand)
            self.partner.send_late(call, strand.resume)


@dataclass(frozen=True)
class Own:
    """The user's agents by name, his fake, and the input of each saga."""

    agents: Mapping[str, Agent]
    fake: Fake
    given: Any


def load_fake(text: str) -> Fake:
    """Return the object that ``module:object`` names; raise ``ConfigurationError``."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise ConfigurationError(f"--partner must be module:object, got {text!r}")
    try:
        found: Any = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--partner: {module!r} cannot be imported ({error})") from None
    except AttributeError:
        raise ConfigurationError(f"--partner: {module!r} has no {name!r}") from None
    lacking = [method for method in METHODS if not callable(getattr(found, method, None))]
    if lacking or isinstance(found, type):
        what = f"has no {' and no '.join(lacking)}()" if lacking else "is a class, not an object"
        raise ConfigurationError(f"--partner: {text} {what}; see docs/prove.md")
    fake: Fake = found
    return fake
