"""Directed runs: one saga each, for a cell that chance comes to seldom.

For every fault of a process, of a message or of a partner there is a run in which it strikes at
the first place where it can; and one for each row of the recovery table that takes several
accidents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from orchestration.contract import AgentContract
from orchestration.definition import RetryPolicy, Step, Workflow, sequence
from tasks.proof.faults import FAULTS
from tasks.proof.node import PAUSES
from tasks.proof.plans import Plan
from tasks.proof.regression import Case

MINUTE = timedelta(minutes=1)
SAGA = ("s0",)
LATE_ENOUGH = 4
"""A seed by which the fourth probe is answered after the step's time, and before the fifth."""
CLOSING = AgentContract(
    name="closing", queue="all", close=True, compensation=True, compensation_closes_key=True
)
ASKING = replace(CLOSING, name="asking", close=False, probe=True)
BOTH = replace(CLOSING, name="both", probe=True)
LIMITED = AgentContract(
    name="limited", queue="all", probe=True, request_lifetime=MINUTE / 2, at_most_once=True
)
WATCHED = AgentContract(
    name="watched",
    queue="all",
    probe=True,
    probe_staleness=timedelta(seconds=5),
    request_lifetime=MINUTE / 2,
    compensation=True,
    at_most_once=True,
)
REPEATING = AgentContract(
    name="repeating", queue="all", idempotent=True, compensation=True, compensation_closes_key=True
)
FORGETFUL = AgentContract(name="forgetful", queue="all", idempotent=True, key_retention=45 * MINUTE)
SEEDS = tuple(range(4))
DONE_AND_LOST = (46, 65, 113)
"""Seeds by which a step that was accepted is done between the backup and the restore."""
LOST = {"partner action s0/a 0": "lost"}
REFUSED = {"partner action s0/z 0": "refused"}


def directed() -> Iterator[Case]:
    """Yield every directed run; ``shows`` is the cell that it is there for."""
    alone, asked, undone = _plan(CLOSING), _plan(ASKING), _plan(CLOSING, then=CLOSING)
    yield from _each("client", alone, {}, "start s0")
    for role, plan, around, number in (
        ("action", alone, {}, 1),
        ("probe", asked, LOST, 1),
        ("close", alone, LOST, 1),
        ("compensation", undone, REFUSED, 2),
    ):
        yield from _each(role, plan, around, f"call s0/a {role} {number}")
        yield from _each(f"publish {role}", plan, around, f"publish s0/a {role} {number}")
        yield from _each(f"partner {role}", plan, around, f"partner {role} s0/a 0")
    inline = _plan(CLOSING, then=CLOSING, inline=True)
    for case in _each("action", inline, {}, "call s0/a action 1 inline"):
        kind, _, point = case.shows.removeprefix("action ").partition("@")
        if kind not in PAUSES and point not in {"p3", "p4"}:
            yield case
    kept = {"call s0/a action 1": "commit-kept@p1"}
    yield from _cases("action commit-kept@p1", inline, kept)
    yield from _restored()
    yield from _rows()
    yield from _dangers()


def _restored() -> Iterator[Case]:
    """Yield the runs whose second step is done in commits that are lost afterwards."""
    accepted = {"restore": "restored", "partner action s0/a 0": "pending"}
    for then in (ASKING, BOTH, CLOSING, WATCHED):
        yield from _cases("database restored", _plan(ASKING, then=then), accepted, *DONE_AND_LOST)


def _each(role: str, plan: Plan, around: Mapping[str, str], site: str) -> Iterator[Case]:
    for fault in FAULTS[role]:
        yield Case(
            seed=0, plan=plan, sagas=SAGA, script={**around, site: fault}, shows=f"{role} {fault}"
        )


def _rows() -> Iterator[Case]:
    """Yield the runs for single rows."""
    short = _plan(BOTH, schedule_to_close=MINUTE)
    unheard = {f"publish s0/a probe {number}": "lost" for number in (1, 2, 3)}
    unheard["publish s0/a probe 4"] = "late"
    for row, first in (("row 9: pending", "pending"), ("row 14: absent", "lost")):
        script = {"partner action s0/a 0": first, **unheard}
        yield Case(seed=LATE_ENOUGH, plan=short, sagas=SAGA, script=script, shows=row)
    last = _plan(LIMITED, pivot=True, retry=RetryPolicy(max_attempts=1))
    yield Case(seed=0, plan=last, sagas=SAGA, script=LOST, shows="row 16: absent")
    poison = {f"call s0/a action {time}": "crash@p3" for time in ("1", "1 #2", "1 #3")}
    yield Case(seed=0, plan=_plan(CLOSING), sagas=SAGA, script=poison, shows="row 25: none")


def _dangers() -> Iterator[Case]:
    """Yield the runs in which a broken guard would double an effect, lose it or leave it behind."""
    once = RetryPolicy(max_attempts=1)
    watched, twice = _plan(WATCHED, retry=once), _plan(WATCHED)
    beyond, late = {"partner action s0/a 0": "beyond"}, {"partner action s0/a 0": "late"}
    yield from _cases("row 24: applied", watched, beyond)
    yield from _cases("row 24: applied", _plan(LIMITED, pivot=True, retry=once), beyond)
    for answer in ("unclear", "conflict", "rejected"):
        heard = LOST | {"partner probe s0/a 2": answer}
        yield from _cases(f"row 17: {answer}", watched, heard)
    waiting = beyond | {"call s0/a action 1": "pause@p9"}
    yield from _cases("partner action beyond", watched, waiting, *SEEDS)
    lagging = {f"partner probe s0/a {number}": "lagging" for number in range(9)}
    asked = {f"call s0/a probe {number}": "pause@p7" for number in range(1, 6)}
    asked |= late | {"call s0/a action 1": "pause@p7"}
    yield from _cases("probe pause@p7", twice, asked, 9, 45)
    unheard = {f"publish s0/a probe {number}": "lost" for number in range(2, 7)}
    unheard |= late | {"call s0/a probe 1": "pause@p7"}
    yield from _cases("probe pause@p7", twice, unheard, 60, 79)
    for plan in (watched, twice):
        yield from _cases("partner action late", plan, late, *SEEDS)
        yield from _cases("partner probe lagging", plan, late | lagging, *SEEDS)
    yield from _cases("action pause@p5", twice, {"call s0/a action 1": "pause@p5"}, *SEEDS)
    closing = _plan(REPEATING)
    no = {"partner action s0/a 0": "late", "partner action s0/a 1": "refused"}
    yield from _cases("partner action refused", closing, no, *SEEDS)
    last = _plan(REPEATING, pivot=True, retry=once)
    yield from _cases("partner action lost", last, {"partner action s0/a 0": "lost"})
    cancelled = {"cancel s0": "cancel", "partner action s0/z 0": "pending"}
    pivot = _plan(CLOSING, pivot=True, then=CLOSING)
    yield from _cases("person refused", pivot, cancelled, *SEEDS)
    forgotten = {f"partner action s0/z {number}": "lost" for number in range(1, 60)}
    forgotten["partner action s0/z 0"] = "reply-lost"
    yield from _cases("row 13: none", _plan(CLOSING, pivot=True, then=FORGETFUL), forgotten, *SEEDS)
    paused = {f"call s0/a action {number}": "pause@p6" for number in (1, 2)}
    beating = _plan(REPEATING, heartbeat_timeout=MINUTE * 0.75)
    yield from _cases("action pause@p6", beating, paused, 9, 14, 16, 28)
    alone = {"call s0/a action 1": "pause@p6"}
    beating = _plan(WATCHED, heartbeat_timeout=MINUTE * 0.75)
    yield from _cases("action pause@p6", beating, alone, *SEEDS)
    limited = _plan(LIMITED, pivot=True, retry=once)
    yield from _cases("partner action late", limited, late, *SEEDS)
    behind = {f"publish s0/a compensation {number}": "late" for number in (2, 3)}
    behind |= LOST | {"publish s0/a action 2": "late", "cancel s0": "cancel"}
    yield from _cases("publish action late", _plan(REPEATING, then=CLOSING), behind, 7, 56)


def _cases(shows: str, plan: Plan, script: Mapping[str, str], *seeds: int) -> Iterator[Case]:
    for seed in seeds or (0,):
        yield Case(seed=seed, plan=plan, sagas=SAGA, script=script, shows=shows)


def _plan(
    contract: AgentContract,
    *,
    then: AgentContract | None = None,
    pivot: bool = False,
    inline: bool = False,
    schedule_to_close: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    retry: RetryPolicy | None = None,
) -> Plan:
    policy = retry or RetryPolicy()
    own = Step(
        "a", agent=contract.name, pivot=pivot, retry=policy, timeout=MINUTE,
        schedule_to_close=schedule_to_close, heartbeat_timeout=heartbeat_timeout,
    )  # fmt: skip
    steps = [own, *([Step("z", agent=then.name, timeout=MINUTE, inline=inline)] if then else [])]
    workflow = Workflow("directed", version=1, steps=sequence(*steps), deadline=60 * MINUTE)
    return Plan(workflow, {given.name: given for given in (contract, then) if given})
