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
    yield from _rows()


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


def _plan(
    contract: AgentContract,
    *,
    then: AgentContract | None = None,
    pivot: bool = False,
    schedule_to_close: timedelta | None = None,
    retry: RetryPolicy | None = None,
) -> Plan:
    policy = retry or RetryPolicy()
    own = Step(
        "a", agent=contract.name, pivot=pivot, retry=policy, timeout=MINUTE,
        schedule_to_close=schedule_to_close,
    )  # fmt: skip
    steps = [own, *([Step("z", agent=then.name, timeout=MINUTE)] if then else [])]
    workflow = Workflow("directed", version=1, steps=sequence(*steps), deadline=60 * MINUTE)
    return Plan(workflow, {given.name: given for given in (contract, then) if given})
