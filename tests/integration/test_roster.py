"""Who is alive, who holds what, and when somebody last swept."""

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from models import Node
from orchestration.roster import Held, release_of
from tests.support.core import Core, line

SILENCE = timedelta(seconds=6)


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a"))


def test_a_node_that_joins_is_alive_and_says_what_it_knows(core: Core) -> None:
    (row,) = core.rows(Node)
    assert (row.name, row.agents, row.definitions) == ("worker", ["book"], sorted(core.known))
    assert row.started_at == row.heartbeat_at == core.now
    assert row.ended_at is None


def test_a_restart_ends_the_earlier_incarnations_of_that_name_only(core: Core) -> None:
    other = core.join("other")
    identity, earlier = core.roster.register("worker", 2, ["book"], [])
    assert earlier == [core.node.id]
    assert identity.id != core.node.id
    alive = {row.id for row in core.rows(Node) if row.ended_at is None}
    assert alive == {identity.id, other.id}


def test_a_node_is_silent_when_it_has_not_spoken_for_long_enough(core: Core) -> None:
    other = core.join("other")
    core.now += SILENCE
    assert core.roster.silent(SILENCE) == []
    core.now += timedelta(microseconds=1)
    core.roster.beat(other.id)
    assert [node for node, _ in core.roster.silent(SILENCE)] == [core.node.id]


@pytest.mark.proves("D-11", "D-16")
def test_a_node_that_speaks_at_the_last_moment_is_not_ended(core: Core) -> None:
    core.now += 2 * SILENCE
    ((node, heartbeat_at),) = core.roster.silent(SILENCE)
    core.roster.beat(node)
    assert not core.roster.end_if_silent(node, heartbeat_at)
    assert core.nodes() == {"worker": True}


def test_a_silent_node_is_ended_once(core: Core) -> None:
    core.now += 2 * SILENCE
    ((node, heartbeat_at),) = core.roster.silent(SILENCE)
    assert core.roster.end_if_silent(node, heartbeat_at)
    assert not core.roster.end_if_silent(node, heartbeat_at)
    assert core.roster.silent(SILENCE) == []


@pytest.mark.proves("D-12")
def test_a_node_that_was_taken_for_dead_learns_it_and_comes_back(core: Core) -> None:
    core.now += 2 * SILENCE
    core.supervisor.sweep_dead_nodes()
    assert core.nodes() == {"worker": False}
    assert not core.roster.beat(core.node.id)
    assert core.nodes() == {"worker": True}
    assert core.roster.beat(core.node.id)


def test_a_node_that_signs_off_is_ended(core: Core) -> None:
    core.roster.end(core.node.id)
    assert core.nodes() == {"worker": False}


def test_leases_are_found_by_their_node_and_its_process(core: Core) -> None:
    saga, other = core.start(), core.start()
    node = core.join("other")
    work = core.take(saga, "a")
    core.take(other, "a", node)
    pid = core.step(saga, "a").pid
    held = [Held(saga_id=saga, path="a", attempt=1)]
    assert core.roster.held_by(core.node.id) == held
    assert core.roster.held_by(core.node.id, pid) == held
    assert core.roster.held_by(core.node.id, pid + 1) == []
    core.report(work)
    assert core.roster.held_by(core.node.id) == []


def test_leases_of_ended_nodes_are_found_in_bounded_numbers(core: Core) -> None:
    sagas = [core.start() for _ in range(5)]
    for saga in sagas:
        core.take(saga, "a")
    assert core.roster.held_by_the_ended(10) == []
    core.roster.end(core.node.id)
    assert len(core.roster.held_by_the_ended(3)) == 3
    assert {held.saga_id for held in core.roster.held_by_the_ended(10)} == set(sagas)


@pytest.mark.proves("D-22")
def test_only_a_living_node_with_both_the_agent_and_the_version_serves_a_step(core: Core) -> None:
    (definition,) = core.known
    assert core.roster.served() == {("book", definition)}
    core.roster.register("half", 2, ["other"], ["another"])
    assert core.roster.served() == {("book", definition), ("other", "another")}
    core.roster.end(core.node.id)
    assert core.roster.served() == {("other", "another")}


@pytest.mark.proves("D-22")
def test_the_release_with_most_living_nodes_is_named_for_a_step(core: Core) -> None:
    (definition,) = core.known
    more = ["another", definition]
    assert core.roster.release_for("book", definition) == release_of(["book"], [definition])
    two = [core.roster.register(name, 2, ["book"], more)[0] for name in ("b", "c")]
    assert core.roster.release_for("book", definition) == release_of(["book"], more)
    assert core.roster.release_for("book", "another") == release_of(["book"], reversed(more))
    for node in two:
        core.roster.end(node.id)
    assert core.roster.release_for("book", definition) == release_of(["book"], [definition])
    assert core.roster.release_for("book", "another") is None
    assert core.roster.release_for("other", definition) is None


@pytest.mark.proves("D-22")
def test_a_node_that_is_ending_serves_nobody_and_lives(core: Core) -> None:
    (definition,) = core.known
    saga = core.start()
    core.take(saga, "a")
    core.roster.withdraw(core.node.id)
    assert core.roster.served() == set()
    assert core.roster.release_for("book", definition) is None
    assert core.roster.beat(core.node.id)
    assert len(core.roster.held_by(core.node.id)) == 1
    assert core.roster.held_by_the_ended(10) == []


@pytest.mark.proves("D-22")
def test_a_node_that_joins_hastens_what_waited_in_vain_for_it(core: Core) -> None:
    saga = core.start()
    core.roster.end(core.node.id)
    for _ in range(4):
        core.now += timedelta(minutes=5)
        core.supervisor.sweep()
    assert core.incidents(saga) == ["unserved"]
    core.news()
    core.now += timedelta(seconds=1)
    core.supervisor.sweep()
    assert core.news() == []
    node = core.join("newcomer")
    core.supervisor.sweep()
    assert core.news() == [("book", "a", 1)]
    core.take(saga, "a", node)
    assert core.incidents(saga) == []


def test_the_time_since_the_last_sweep_is_that_of_the_newest_by_any_node(core: Core) -> None:
    assert core.roster.since_last_sweep() is None
    other = core.join("other")
    core.roster.swept(other.id)
    core.now += timedelta(seconds=9)
    core.roster.swept(core.node.id)
    core.now += timedelta(seconds=2)
    assert core.roster.since_last_sweep() == timedelta(seconds=2)


def test_a_node_that_was_never_entered_does_not_become_one(core: Core) -> None:
    core.roster.beat(uuid4())
    core.roster.end(uuid4())
    core.roster.swept(uuid4())
    assert len(core.rows(Node)) == 1
