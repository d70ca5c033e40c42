"""Every row of the recovery table, with the nearest case in which another row decides.

``test_table_is_tested_row_by_row`` sees to it that no row is left out.
"""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.states import Operation
from orchestration.contract import MARGIN, AgentContract
from orchestration.recovery import (
    CRASH_LIMIT,
    UNCLEAR_LIMIT,
    Action,
    Case,
    Verdict,
    resolve,
    resolve_late,
    resolve_undo,
)
from orchestration.safety import Position
from orchestration.signals import (
    Absent,
    Answer,
    Applied,
    Closed,
    Conflict,
    Pending,
    Rejected,
    Unclear,
)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOTHING = timedelta(0)
INSTANT = timedelta(microseconds=1)
ROWS = {*map(str, range(1, 26)), "12b"}
BEFORE, PIVOT, AFTER = Position.BEFORE, Position.PIVOT, Position.AFTER

IDEMPOTENT = {"idempotent": True, "key_retention": DAY}
PROBED = {"probe": True}
CLOSABLE = {"close": True}
PLAIN_UNDO = {"compensation": True}
BARRIER = {"compensation": True, "compensation_closes_key": True}
ENDS = ({"spent": True}, {"late": True}, {"aborting": True})


def case(*properties: dict[str, Any], **facts: Any) -> Case:
    declared: dict[str, Any] = {}
    for part in properties:
        declared |= part
    position = facts.pop("position", BEFORE)
    return Case(contract=AgentContract(name="hotels.book", **declared), position=position, **facts)


def decided(*properties: dict[str, Any], **facts: Any) -> tuple[str, Action]:
    verdict = resolve(case(*properties, **facts))
    return verdict.row, verdict.action


def verdict(*properties: dict[str, Any], **facts: Any) -> Verdict:
    return resolve(case(*properties, **facts))


# --- nothing was sent ----------------------------------------------------------------------------


@pytest.mark.proves("row 1")
@pytest.mark.parametrize("properties", [{}, IDEMPOTENT, PROBED, BARRIER, {"at_most_once": True}])
def test_row_1_what_was_never_sent_is_retried_at_once_and_without_a_probe(
    properties: dict[str, Any],
) -> None:
    found = verdict(properties, doubt=False)
    assert (found.row, found.action, found.at_once) == ("1", Action.RETRY, True)


def test_row_1_does_not_hold_once_something_may_have_been_sent() -> None:
    assert decided(PROBED, doubt=True) == ("0", Action.ASK)


@pytest.mark.proves("row 2")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("position", [BEFORE, PIVOT])
def test_row_2_what_was_never_sent_and_is_to_end_certainly_had_no_effect(
    end: dict[str, bool], position: Position
) -> None:
    assert decided(doubt=False, position=position, **end) == ("2", Action.GIVE_UP)


def test_row_2_does_not_hold_while_attempts_are_left() -> None:
    assert decided(doubt=False) == ("1", Action.RETRY)


def test_row_2_does_not_hold_after_the_pivot() -> None:
    assert decided(doubt=False, position=AFTER, spent=True) == ("22", Action.RETRY)


# --- the remote has answered ---------------------------------------------------------------------


@pytest.mark.proves("row 3")
def test_row_3_an_effect_that_is_known_is_recorded_and_the_saga_goes_on() -> None:
    assert decided(IDEMPOTENT, answer=Applied("room 7")) == ("3", Action.SUCCEED)


def test_row_3_holds_also_for_the_last_attempt() -> None:
    assert decided(answer=Applied(), spent=True) == ("3", Action.SUCCEED)


@pytest.mark.proves("row 4")
@pytest.mark.parametrize("turned", [{"aborting": True}, {"late": True}])
def test_row_4_an_effect_that_comes_to_light_in_a_saga_that_turns_back_is_recorded(
    turned: dict[str, bool],
) -> None:
    assert decided(answer=Applied(), **turned) == ("4", Action.SUCCEED)


def test_row_4_does_not_hold_in_a_saga_that_goes_forward() -> None:
    assert decided(answer=Applied()) == ("3", Action.SUCCEED)


@pytest.mark.proves("row 5")
@pytest.mark.parametrize("position", [PIVOT, AFTER])
def test_row_5_a_known_effect_at_or_after_the_pivot_goes_forward_even_when_late(
    position: Position,
) -> None:
    found = verdict(answer=Applied(), position=position, late=True)
    assert (found.row, found.action, found.alert) == ("5", Action.SUCCEED, "overdue")


def test_row_5_raises_no_alarm_in_time() -> None:
    found = verdict(answer=Applied(), position=PIVOT)
    assert (found.row, found.alert) == ("5", None)


def test_row_5_does_not_hold_before_the_pivot() -> None:
    assert decided(answer=Applied(), position=BEFORE, late=True) == ("4", Action.SUCCEED)


@pytest.mark.proves("row 6")
@pytest.mark.parametrize("position", [BEFORE, PIVOT])
@pytest.mark.parametrize("facts", [{}, {"spent": True}, {"aborting": True}])
def test_row_6_a_definite_no_ends_the_step(position: Position, facts: dict[str, bool]) -> None:
    answer = Rejected("sold out")
    assert decided(IDEMPOTENT, answer=answer, position=position, **facts) == ("6", Action.GIVE_UP)


def test_row_6_after_the_pivot_a_definite_no_is_left_to_an_operator() -> None:
    found = verdict(IDEMPOTENT, answer=Rejected("no"), position=AFTER)
    assert (found.row, found.action, found.alert) == ("6", Action.PARK, "rejected_after_pivot")


@pytest.mark.proves("row 7")
@pytest.mark.parametrize("position", list(Position))
@pytest.mark.parametrize("end", [{}, *ENDS])
def test_row_7_a_key_of_somebody_else_is_left_to_an_operator(
    position: Position, end: dict[str, bool]
) -> None:
    everything = (IDEMPOTENT, PROBED, CLOSABLE, BARRIER)
    found = verdict(*everything, answer=Conflict("other amount"), position=position, **end)
    assert (found.row, found.action, found.alert) == ("7", Action.PARK, "conflict")
    assert "other amount" in found.why


@pytest.mark.proves("row 8")
@pytest.mark.parametrize("position", list(Position))
def test_row_8_accepted_work_is_asked_about_again_and_not_sent_again(position: Position) -> None:
    found = verdict(IDEMPOTENT, PROBED, answer=Pending(), position=position, spent=True)
    assert (found.row, found.action, found.operation) == ("8", Action.ASK, Operation.PROBE)


@pytest.mark.proves("row 9")
@pytest.mark.parametrize("end", [{"late": True}, {"aborting": True}])
@pytest.mark.parametrize("position", [BEFORE, PIVOT])
def test_row_9_accepted_work_whose_time_is_over_is_closed_by_its_key(
    end: dict[str, bool], position: Position
) -> None:
    found = verdict(PROBED, CLOSABLE, answer=Pending(), position=position, **end)
    assert (found.row, found.action, found.operation) == ("9", Action.ASK, Operation.CLOSE)


def test_row_9_does_not_hold_in_time() -> None:
    assert verdict(PROBED, CLOSABLE, answer=Pending()).row == "8"


def test_row_9_does_not_hold_after_the_pivot() -> None:
    found = verdict(PROBED, CLOSABLE, answer=Pending(), position=AFTER, late=True)
    assert (found.row, found.operation) == ("10", Operation.PROBE)


def test_row_9_leaves_a_manual_agent_to_its_operator() -> None:
    found = verdict(PROBED, CLOSABLE, {"manual": True}, answer=Pending(), late=True)
    assert (found.row, found.operation) == ("10", Operation.PROBE)


@pytest.mark.proves("row 10")
def test_row_10_accepted_work_that_cannot_be_closed_is_waited_for_up_to_the_remotes_limit() -> None:
    limited = {"pending_limit": HOUR}
    young = case(PROBED, limited, answer=Pending(), late=True, age=HOUR - INSTANT)
    assert (resolve(young).row, resolve(young).action) == ("10", Action.ASK)
    old = verdict(PROBED, limited, answer=Pending(), late=True, age=HOUR)
    assert (old.row, old.action, old.alert) == ("10", Action.PARK, "pending_too_long")


def test_row_10_does_not_hold_in_time_however_old_the_request_is() -> None:
    assert decided(PROBED, {"pending_limit": HOUR}, answer=Pending(), age=DAY)[0] == "8"


@pytest.mark.proves("row 11")
@pytest.mark.parametrize("asked", range(UNCLEAR_LIMIT))
def test_row_11_without_evidence_the_question_is_put_again(asked: int) -> None:
    found = verdict(IDEMPOTENT, PROBED, answer=Unclear("503"), asked=asked)
    assert (found.row, found.action, found.alert) == ("11", Action.ASK, None)


def test_row_11_an_idempotent_step_may_be_sent_again_when_no_answer_is_to_be_had() -> None:
    found = decided(IDEMPOTENT, PROBED, answer=Unclear("503"), asked=UNCLEAR_LIMIT)
    assert found == ("11", Action.RETRY)


@pytest.mark.parametrize(
    ("properties", "age"),
    [({}, NOTHING), (IDEMPOTENT, DAY)],
    ids=["not idempotent", "key forgotten"],
)
def test_row_11_otherwise_the_question_is_put_for_ever_and_somebody_is_told(
    properties: dict[str, Any], age: timedelta
) -> None:
    found = verdict(properties, PROBED, answer=Unclear("503"), asked=UNCLEAR_LIMIT, age=age)
    assert (found.row, found.action, found.alert) == ("11", Action.ASK, "unresolved")


def test_row_11_does_not_bind_what_was_declared_at_most_once_for_ever() -> None:
    at_most_once = {"at_most_once": True}
    asking = decided(PROBED, at_most_once, answer=Unclear(), asked=UNCLEAR_LIMIT - 1)
    assert asking == ("11", Action.ASK)
    for facts in ({}, {"spent": True}, {"position": AFTER}):
        given_up = decided(PROBED, at_most_once, answer=Unclear(), asked=UNCLEAR_LIMIT, **facts)
        assert given_up == ("20", Action.ABANDON)


@pytest.mark.parametrize("end", [{}, *ENDS])
def test_row_11_leaves_a_manual_agent_to_its_operator(end: dict[str, bool]) -> None:
    manual = (IDEMPOTENT, PROBED, CLOSABLE, BARRIER, {"manual": True})
    assert decided(*manual, answer=Unclear(), **end) == ("11", Action.ASK)
    parked = decided(*manual, answer=Unclear(), asked=UNCLEAR_LIMIT, **end)
    assert parked == ("20", Action.PARK)


# --- absent, or nobody to ask --------------------------------------------------------------------


@pytest.mark.proves("row 0")
@pytest.mark.parametrize("position", list(Position))
def test_the_remote_is_asked_before_anything_else(position: Position) -> None:
    found = verdict(IDEMPOTENT, PROBED, BARRIER, position=position)
    assert (found.row, found.action, found.wait) == ("0", Action.ASK, NOTHING)


@pytest.mark.proves("row 12")
@pytest.mark.parametrize("position", list(Position))
@pytest.mark.parametrize(
    ("properties", "answer"), [(PROBED, Absent()), ({}, None)], ids=["absent", "no probe"]
)
def test_row_12_an_idempotent_step_is_sent_again_under_its_key(
    position: Position, properties: dict[str, Any], answer: Answer | None
) -> None:
    found = verdict(IDEMPOTENT, properties, answer=answer, position=position)
    assert (found.row, found.action, found.new_key) == ("12", Action.RETRY, False)


@pytest.mark.proves("row 12", "row 13")
def test_row_12_ends_where_the_remote_may_forget_the_key() -> None:
    alive = DAY - MARGIN - INSTANT
    assert decided(IDEMPOTENT, age=alive) == ("12", Action.RETRY)
    assert decided(IDEMPOTENT, age=alive + INSTANT) == ("13", Action.PARK)


def test_row_12_holds_without_end_where_keys_are_kept_for_ever() -> None:
    assert decided({"idempotent": True}, age=1000 * DAY) == ("12", Action.RETRY)


@pytest.mark.proves("row 12b")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("properties", [{}, PLAIN_UNDO], ids=["no undo", "plain undo"])
def test_row_12b_a_spent_step_that_is_only_idempotent_repeats_slowly_as_its_own_probe(
    end: dict[str, bool], properties: dict[str, Any]
) -> None:
    found = verdict(IDEMPOTENT, properties, **end)
    assert (found.row, found.action, found.new_key) == ("12b", Action.RETRY, False)
    assert (found.slow, found.alert) == (True, "stuck")


def test_row_12b_ends_in_an_operators_hands_where_the_remote_may_forget_the_key() -> None:
    found = verdict(IDEMPOTENT, spent=True, age=DAY - MARGIN)
    assert (found.row, found.action, found.alert) == ("13", Action.PARK, "in_doubt")


@pytest.mark.parametrize(
    ("properties", "row"), [(CLOSABLE, "14"), (BARRIER, "15")], ids=["close", "barrier"]
)
def test_row_12b_does_not_hold_where_there_is_a_better_exit(
    properties: dict[str, Any], row: str
) -> None:
    assert verdict(IDEMPOTENT, properties, spent=True).row == row


@pytest.mark.proves("row 13")
@pytest.mark.parametrize("answer", [Absent(), None])
def test_row_13_a_key_that_may_be_forgotten_is_closed_and_never_sent_again(
    answer: Answer | None,
) -> None:
    probe = {"probe": answer is not None}
    found = verdict(IDEMPOTENT, CLOSABLE, BARRIER, probe, answer=answer, age=DAY)
    assert (found.row, found.action, found.operation) == ("13", Action.ASK, Operation.CLOSE)


def test_row_13_else_it_is_undone_behind_a_barrier() -> None:
    assert decided(IDEMPOTENT, BARRIER, age=DAY) == ("15", Action.UNDO)


def test_row_13_else_the_horizon_is_waited_for() -> None:
    facts = {"answer": Absent(), "age": DAY - HOUR, "lasting": HOUR}
    assert decided(IDEMPOTENT, PROBED, to_horizon=HOUR, **facts) == ("16", Action.ASK)
    assert decided(IDEMPOTENT, PROBED, to_horizon=NOTHING, **facts) == ("17", Action.GIVE_UP)


@pytest.mark.parametrize("properties", [IDEMPOTENT, {"key_retention": DAY}])
def test_row_13_that_a_key_is_unknown_proves_nothing_once_it_may_be_forgotten(
    properties: dict[str, Any],
) -> None:
    facts = {"answer": Absent(), "age": DAY, "to_horizon": NOTHING}
    assert decided(properties, PROBED, **facts) == ("13", Action.PARK)
    assert decided(properties, PROBED, **facts, spent=True) == ("13", Action.PARK)
    assert decided(properties, PROBED, CLOSABLE, **facts) == ("13", Action.ASK)
    assert decided(properties, PROBED, BARRIER, **facts) == ("15", Action.UNDO)


def test_row_13_else_it_is_left_to_an_operator() -> None:
    assert decided(IDEMPOTENT, PROBED, answer=Absent(), age=DAY) == ("13", Action.PARK)


def test_row_13_after_the_pivot_is_left_to_an_operator_unless_the_key_can_be_closed() -> None:
    facts = {"position": AFTER, "age": DAY, "to_horizon": NOTHING}
    assert decided(IDEMPOTENT, BARRIER, **facts) == ("13", Action.PARK)
    assert decided(IDEMPOTENT, CLOSABLE, **facts) == ("13", Action.ASK)


@pytest.mark.proves("row 14")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("position", [BEFORE, PIVOT])
@pytest.mark.parametrize("answer", [None, Absent(), Unclear("503")])
def test_row_14_a_step_that_is_to_end_is_closed_whatever_happened(
    end: dict[str, bool], position: Position, answer: Answer | None
) -> None:
    facts = {"answer": answer, "position": position, **end}
    found = verdict(IDEMPOTENT, PROBED, CLOSABLE, BARRIER, **facts)
    assert (found.row, found.action, found.operation) == ("14", Action.ASK, Operation.CLOSE)


@pytest.mark.parametrize("end", ENDS)
def test_row_14_a_closed_key_ends_the_step_without_effect(end: dict[str, bool]) -> None:
    assert decided(CLOSABLE, answer=Closed(), **end) == ("14", Action.GIVE_UP)


def test_row_14_an_effect_that_the_close_finds_is_row_4() -> None:
    assert decided(CLOSABLE, answer=Applied(), aborting=True) == ("4", Action.SUCCEED)


def test_row_14_does_not_hold_while_attempts_are_left() -> None:
    assert decided(IDEMPOTENT, CLOSABLE) == ("12", Action.RETRY)


def test_row_14_does_not_hold_after_the_pivot() -> None:
    assert decided(IDEMPOTENT, CLOSABLE, position=AFTER, spent=True) == ("22", Action.RETRY)


def test_row_14_tells_somebody_when_the_key_cannot_be_closed() -> None:
    closing = {"answer": Unclear("503"), "spent": True}
    assert verdict(CLOSABLE, asked=UNCLEAR_LIMIT - 1, **closing).alert is None
    assert verdict(CLOSABLE, asked=UNCLEAR_LIMIT, **closing).alert == "unresolved"


@pytest.mark.proves("row 15")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answer", [Absent(), Unclear("503")])
def test_row_15_a_step_that_is_to_end_is_undone_behind_a_barrier_though_nothing_may_have_happened(
    end: dict[str, bool], answer: Answer
) -> None:
    assert decided(IDEMPOTENT, PROBED, BARRIER, answer=answer, **end) == ("15", Action.UNDO)


@pytest.mark.parametrize("position", [PIVOT, AFTER])
def test_row_15_holds_only_before_the_pivot(position: Position) -> None:
    found = decided(IDEMPOTENT, BARRIER, position=position, spent=True)
    assert found[1] is Action.RETRY


BEHIND = {"position": AFTER, "aborting": True}
"""A step after the pivot of a saga that turns back: only lost commits leave one in doubt."""


def test_what_stands_behind_the_pivot_of_a_saga_that_turns_back_is_not_tried_again() -> None:
    assert decided(PROBED, IDEMPOTENT, answer=Absent(), **BEHIND) == ("20", Action.PARK)
    assert decided(IDEMPOTENT, BARRIER, **BEHIND) == ("15", Action.UNDO)
    assert decided(PROBED, answer=Absent(), to_horizon=-INSTANT, **BEHIND)[1] is Action.GIVE_UP
    assert decided(PROBED, answer=Rejected(), **BEHIND)[1] is Action.GIVE_UP


def test_row_15_does_not_hold_for_a_plain_undo() -> None:
    assert decided(PROBED, PLAIN_UNDO, answer=Absent(), spent=True) == ("20", Action.PARK)


@pytest.mark.proves("row 16", "D-14")
@pytest.mark.parametrize("end", ENDS)
def test_row_16_absence_proves_nothing_before_the_horizon(end: dict[str, bool]) -> None:
    found = verdict(PROBED, answer=Absent(), to_horizon=INSTANT, **end)
    assert (found.row, found.action, found.wait) == ("16", Action.ASK, INSTANT)


def test_row_16_needs_a_horizon_that_the_remote_enforces() -> None:
    found = verdict(PROBED, answer=Absent(), to_horizon=None, spent=True)
    assert (found.row, found.action) == ("20", Action.PARK)


@pytest.mark.proves("row 17")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("position", [BEFORE, PIVOT])
def test_row_17_absence_after_the_horizon_ends_the_step_and_keeps_looking_out(
    end: dict[str, bool], position: Position
) -> None:
    facts = {"answer": Absent(), "to_horizon": NOTHING, "position": position, **end}
    found = verdict(PROBED, **facts)
    assert (found.row, found.action, found.watch) == ("17", Action.GIVE_UP, True)


def test_row_17_needs_a_clear_answer() -> None:
    facts = {"answer": Unclear("503"), "to_horizon": NOTHING, "spent": True}
    assert decided(PROBED, asked=UNCLEAR_LIMIT, **facts) == ("11", Action.ASK)


def test_row_17_does_not_hold_after_the_pivot() -> None:
    facts = {"answer": Absent(), "to_horizon": NOTHING, "spent": True}
    assert decided(PROBED, position=AFTER, **facts) == ("19", Action.RETRY)


@pytest.mark.proves("row 18")
@pytest.mark.parametrize("position", list(Position))
def test_row_18_what_is_not_idempotent_is_closed_first_and_sent_again_under_a_new_key(
    position: Position,
) -> None:
    closing = verdict(PROBED, CLOSABLE, answer=Absent(), position=position)
    assert (closing.row, closing.action, closing.operation) == ("18", Action.ASK, Operation.CLOSE)
    closed = verdict(PROBED, CLOSABLE, answer=Closed(), position=position)
    assert (closed.action, closed.new_key) == (Action.RETRY, True)


def test_row_18_without_a_close_it_is_never_sent_again_before_the_horizon() -> None:
    found = verdict(PROBED, answer=Absent(), to_horizon=HOUR)
    assert (found.row, found.action, found.wait) == ("18", Action.ASK, HOUR)


def test_row_18_holds_too_when_nobody_knows_and_the_key_can_be_closed() -> None:
    for position in Position:
        found = verdict(PROBED, CLOSABLE, answer=Unclear(), asked=UNCLEAR_LIMIT, position=position)
        assert (found.row, found.operation, found.alert) == ("18", Operation.CLOSE, "unresolved")


def test_row_18_does_not_hold_for_what_is_idempotent() -> None:
    assert decided(IDEMPOTENT, PROBED, CLOSABLE, answer=Absent()) == ("12", Action.RETRY)


@pytest.mark.proves("row 19")
def test_row_19_absent_after_the_horizon_what_is_not_idempotent_may_be_sent_again() -> None:
    found = verdict(PROBED, answer=Absent(), to_horizon=NOTHING)
    assert (found.row, found.action, found.new_key) == ("19", Action.RETRY, False)


def test_row_19_does_not_hold_where_no_horizon_is_enforced() -> None:
    assert decided(PROBED, answer=Absent(), to_horizon=None) == ("20", Action.PARK)


@pytest.mark.proves("row 20")
@pytest.mark.parametrize("end", [{}, *ENDS])
@pytest.mark.parametrize("position", list(Position))
def test_row_20_what_cannot_be_settled_is_left_to_an_operator(
    end: dict[str, bool], position: Position
) -> None:
    found = verdict(position=position, **end)
    assert (found.row, found.action, found.alert) == ("20", Action.PARK, "in_doubt")


@pytest.mark.parametrize("position", list(Position))
def test_row_20_or_the_saga_goes_on_without_knowing_where_that_was_declared(
    position: Position,
) -> None:
    assert decided({"at_most_once": True}, position=position) == ("20", Action.ABANDON)


@pytest.mark.parametrize("end", [{}, *ENDS])
def test_row_20_a_manual_agent_is_left_to_its_operator_whatever_else_it_can(
    end: dict[str, bool],
) -> None:
    manual = {"manual": True}
    assert decided(IDEMPOTENT, CLOSABLE, BARRIER, manual, **end) == ("20", Action.PARK)


@pytest.mark.proves("row 21")
def test_row_21_a_plain_undo_never_overtakes_its_action() -> None:
    waiting = verdict(PROBED, PLAIN_UNDO, answer=Absent(), to_horizon=HOUR, spent=True)
    assert (waiting.row, waiting.action, waiting.wait) == ("21", Action.ASK, HOUR)
    settled = decided(PROBED, PLAIN_UNDO, answer=Absent(), to_horizon=NOTHING, spent=True)
    assert settled == ("17", Action.GIVE_UP)


def test_row_21_what_is_there_is_undone_by_way_of_row_4() -> None:
    found = decided(PROBED, PLAIN_UNDO, answer=Applied(), aborting=True)
    assert found == ("4", Action.SUCCEED)


@pytest.mark.proves("row 22")
@pytest.mark.parametrize("end", [{"spent": True}, {"late": True}])
@pytest.mark.parametrize(
    ("properties", "facts"),
    [
        (IDEMPOTENT, {}),
        (IDEMPOTENT | PROBED, {"answer": Absent()}),
        (IDEMPOTENT | PROBED, {"answer": Unclear("503"), "asked": UNCLEAR_LIMIT}),
        ({}, {"doubt": False}),
    ],
    ids=["no probe", "absent", "unclear", "never sent"],
)
def test_row_22_after_the_pivot_it_is_repeated_slowly_until_it_succeeds(
    end: dict[str, bool], properties: dict[str, Any], facts: dict[str, Any]
) -> None:
    found = verdict(properties, position=AFTER, **facts, **end)
    assert (found.row, found.action) == ("22", Action.RETRY)
    assert (found.slow, found.alert) == (True, "stuck")


def test_row_22_does_not_hold_while_attempts_are_left() -> None:
    found = verdict(IDEMPOTENT, position=AFTER)
    assert (found.row, found.slow) == ("12", False)


@pytest.mark.proves("row 23", "CT-04", "CT-14")
@pytest.mark.parametrize(
    ("failures", "slow", "alert"),
    [
        (1, False, None),
        (2, False, None),
        (3, True, "compensation_stuck"),
        (99, True, "compensation_stuck"),
    ],
)
def test_row_23_a_compensation_is_repeated_without_end_and_somebody_is_told(
    failures: int, slow: bool, alert: str | None
) -> None:
    found = resolve_undo(failures=failures, limit=3)
    assert (found.row, found.action) == ("23", Action.RETRY)
    assert (found.slow, found.alert) == (slow, alert)


@pytest.mark.proves("row 24")
def test_row_24_an_effect_that_appears_afterwards_is_undone_and_somebody_is_told() -> None:
    found = resolve_late(Applied("room 7"))
    assert (found.row, found.action, found.alert) == ("24", Action.UNDO, "late_effect")


@pytest.mark.parametrize("answer", [None, Absent(), Pending(), Unclear("503"), Rejected("no")])
def test_row_24_does_not_hold_while_nothing_appears(answer: Answer | None) -> None:
    found = resolve_late(answer)
    assert (found.row, found.action, found.alert) == ("17", Action.ASK, None)


@pytest.mark.proves("row 25")
@pytest.mark.parametrize("position", list(Position))
@pytest.mark.parametrize("end", [{}, *ENDS])
def test_row_25_a_message_that_kills_its_workers_is_poison(
    position: Position, end: dict[str, bool]
) -> None:
    found = verdict(doubt=False, crashes=CRASH_LIMIT, position=position, **end)
    assert (found.row, found.action, found.alert) == ("25", Action.PARK, "poison")


def test_row_25_does_not_hold_below_the_limit() -> None:
    assert decided(doubt=False, crashes=CRASH_LIMIT - 1) == ("1", Action.RETRY)


# --- the table as a whole ------------------------------------------------------------------------


def test_table_is_tested_row_by_row() -> None:
    tested = {name.split("_")[2] for name in globals() if name.startswith("test_row_")}
    assert tested == ROWS


durations = st.sampled_from([NOTHING, INSTANT, HOUR, DAY - MARGIN - INSTANT, DAY - MARGIN, DAY])
contracts = st.builds(
    AgentContract,
    name=st.just("hotels.book"),
    idempotent=st.booleans(),
    key_retention=st.sampled_from([None, DAY]),
    probe=st.booleans(),
    close=st.booleans(),
    compensation=st.booleans(),
    compensation_closes_key=st.booleans(),
    at_most_once=st.booleans(),
    manual=st.booleans(),
    pending_limit=st.sampled_from([HOUR, DAY]),
)
answers = st.sampled_from(
    [None, Applied(), Absent(), Pending(), Rejected(), Conflict(), Unclear(), Closed()]
)
cases = st.builds(
    Case,
    contract=contracts,
    position=st.sampled_from(Position),
    answer=answers,
    doubt=st.booleans(),
    spent=st.booleans(),
    late=st.booleans(),
    aborting=st.booleans(),
    age=durations,
    to_horizon=st.sampled_from([None, -HOUR, NOTHING, INSTANT, HOUR]),
    asked=st.integers(0, 2 * UNCLEAR_LIMIT),
    crashes=st.integers(0, 2 * CRASH_LIMIT),
)


@given(cases)
def test_every_case_has_a_verdict_with_a_row_and_a_reason(given_case: Case) -> None:
    found = resolve(given_case)
    assert found.row in ROWS | {"0"}
    assert found.why


@given(cases)
@pytest.mark.proves("INV-1", "RT-07")
def test_what_is_in_doubt_is_sent_again_only_where_that_cannot_make_a_second_effect(
    given_case: Case,
) -> None:
    found = resolve(given_case)
    if found.action is Action.RETRY and given_case.doubt and not found.new_key:
        assert given_case.may_resend or found.row == "19"


@given(cases)
def test_what_is_not_idempotent_is_sent_again_only_when_absent_after_the_horizon(
    given_case: Case,
) -> None:
    found = resolve(given_case)
    if found.row == "19":
        assert isinstance(given_case.answer, Absent)
        assert given_case.to_horizon is not None
        assert given_case.to_horizon <= NOTHING


@given(cases)
def test_a_new_key_is_only_taken_after_a_definite_no_to_the_old_one(given_case: Case) -> None:
    """K-2."""
    if resolve(given_case).new_key:
        assert isinstance(given_case.answer, Closed | Rejected)


@given(cases)
@pytest.mark.proves("INV-3")
def test_a_step_in_doubt_is_given_up_only_on_a_definite_no_or_after_the_horizon(
    given_case: Case,
) -> None:
    found = resolve(given_case)
    if found.action is Action.GIVE_UP and given_case.doubt:
        definite = isinstance(given_case.answer, Rejected | Closed)
        assert definite or (found.row == "17" and isinstance(given_case.answer, Absent))


@given(cases)
def test_an_undo_without_knowledge_needs_a_barrier(given_case: Case) -> None:
    """COMP-06."""
    if resolve(given_case).action is Action.UNDO:
        assert given_case.barrier


@given(cases, st.booleans())
@pytest.mark.proves("CT-12")
def test_after_the_pivot_nothing_is_undone_or_given_up(given_case: Case, doubt: bool) -> None:
    found = resolve(given_case)
    if given_case.forward_only:
        assert found.action not in {Action.UNDO, Action.GIVE_UP}


@given(cases)
def test_an_effect_that_is_known_is_never_dropped(given_case: Case) -> None:
    """CT-07."""
    if given_case.doubt and isinstance(given_case.answer, Applied):
        assert resolve(given_case).action is Action.SUCCEED


@given(cases)
def test_only_what_an_agent_has_is_asked_of_it(given_case: Case) -> None:
    found = resolve(given_case)
    if found.action is Action.ASK and found.operation is Operation.CLOSE:
        assert given_case.contract.close
    if found.action is Action.ASK and found.wait == NOTHING:
        assert given_case.contract.probe


@given(cases)
@pytest.mark.proves("INV-10", "CT-05")
@example(case(position=AFTER, answer=Rejected()))
def test_whatever_is_parked_asks_for_an_operator(given_case: Case) -> None:
    found = resolve(given_case)
    if found.action is Action.PARK:
        assert found.alert


@given(cases)
def test_only_what_was_declared_at_most_once_is_abandoned(given_case: Case) -> None:
    if resolve(given_case).action is Action.ABANDON:
        assert given_case.contract.at_most_once


@given(cases)
def test_an_endless_question_or_repetition_tells_somebody(given_case: Case) -> None:
    """Whatever goes on without a limit of its own is seen by a person in the end (CT-05)."""
    found = resolve(given_case)
    unclear = isinstance(given_case.answer, Unclear) and given_case.doubt
    if unclear and given_case.asked >= UNCLEAR_LIMIT and found.action is Action.ASK:
        assert found.alert == "unresolved"
    if found.action is Action.RETRY and found.slow and not found.new_key:
        assert found.alert
