"""The code in the README is taken from it, compared with the example, and run."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from models.states import Operation, SagaState
from orchestration.events import Dispatch
from orchestration.lease import Leases
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from tasks.agent import AGENTS
from tasks.envelope import Envelope

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST, OWN_TRANSACTION = re.findall(r"(?ms)^```python\n(.*?)^```", README)


class Base(DeclarativeBase):
    """The tables of somebody's own application."""


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


class AtOnce:
    """A broker and a worker in one: what is published is run before ``publish`` returns."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.scheduler = Scheduler(store, self, registry)
        known = self.scheduler.register_definitions()
        node, _ = Roster(store).register("at-once", 1, list(registry.contracts), known)
        self.envelope = Envelope(Leases(self.scheduler), node, set(known))

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        for message in dispatches:
            name = message.name.removesuffix(".compensation")
            what = Operation.ACTION if name == message.name else Operation.COMPENSATION
            saga = str(message.saga_id)
            self.envelope.attempt(AGENTS[name], what, saga, message.path, message.number)

    def depth(self, queue: str) -> int | None:
        return None


@pytest.fixture
def parts(store: Store) -> AtOnce:
    """The README's first workflow, loaded and ready to run."""
    names: dict[str, Any] = {"__name__": "first_of_the_readme"}
    exec(compile(FIRST, "README.md", "exec"), names)
    registry = Registry()
    registry.add_workflow(names["first"])
    for agent in (names["hold"], names["charge"]):
        registry.add_agent(agent.contract)
    return AtOnce(store, registry)


def test_the_first_workflow_has_fifteen_lines_and_is_the_example() -> None:
    assert len([line for line in FIRST.splitlines() if line.strip()]) == 15
    example = (ROOT / "examples" / "first.py").read_text(encoding="utf-8")
    assert bare(FIRST) == bare(example)


def bare(source: str) -> str:
    """Return what a program does, without what it says about itself."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not is_remark(part)]
    return ast.dump(tree)


def is_remark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_the_first_workflow_runs_to_its_end(parts: AtOnce) -> None:
    end = parts.scheduler.start("first", {"guest": "Ada"}).result()
    assert end.state is SagaState.COMPLETED
    assert end.results == {
        "seat": "row 7, held for Ada",
        "pay": "paid: row 7, held for Ada",
    }


def test_a_saga_starts_inside_the_callers_own_transaction(
    parts: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    Base.metadata.create_all(parts.store.engine)
    monkeypatch.setattr("tasks.app.runtime", lambda: parts)
    names: dict[str, Any] = {"order": Order(id=17)}
    exec(compile(OWN_TRANSACTION, "README.md", "exec"), names)
    assert names["result"].state is SagaState.COMPLETED
    with Session(parts.store.engine) as session:
        assert session.get(Order, 17) is not None


def test_a_saga_whose_callers_transaction_is_rolled_back_never_was(
    parts: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    Base.metadata.create_all(parts.store.engine)
    with Session(parts.store.engine) as session, session.begin():
        session.add(Order(id=17))
    monkeypatch.setattr("tasks.app.runtime", lambda: parts)
    taken = SimpleNamespace(order=Order(id=17))
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        exec(compile(OWN_TRANSACTION, "README.md", "exec"), vars(taken))
    assert parts.scheduler.start("first", {"guest": "Ada"}, key="order-17").created
