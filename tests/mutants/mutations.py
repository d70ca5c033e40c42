"""The mutations: each breaks one rule that the code lives by, in a line or two, and has a name.

``killers`` are the tests that are tried first. A mutant that outlives them meets all cheap layers,
and one that outlives those as well shows that a test is missing.
"""

from dataclasses import dataclass

DECIDE = "tests/unit/test_decide.py"
RECOVERY = "tests/unit/test_recovery.py"
LATE = "tests/unit/test_late.py"
COMMAND = "tests/unit/test_command.py"
CONTRACT = "tests/unit/test_contract.py"
SNAPSHOT = "tests/unit/test_snapshot.py"
PLAN = "tests/unit/test_plan.py"
SAFETY = "tests/unit/test_safety.py"
WRITER = "tests/integration/test_writer.py"
LEASE = "tests/integration/test_lease.py"
SCHEDULER = "tests/integration/test_scheduler.py"
SUPERVISOR = "tests/integration/test_supervisor.py"
ROSTER = "tests/integration/test_roster.py"
RACES = "tests/integration/test_races.py"
DISTRUST = "tests/integration/test_distrust.py"
DATABASE = "tests/integration/test_database.py"
OUTBOX = "tests/integration/test_outbox.py"
BORROWED = "tests/integration/test_borrowed.py"
DOUBT = "tests/unit/test_doubt.py"
ENVELOPE = "tests/integration/test_envelope.py"
NODE = "tests/integration/test_node.py"


@dataclass(frozen=True)
class Edit:
    """One change of one file: ``old`` stands there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong."""

    name: str
    rule: str
    """The rule that it breaks."""
    statements: tuple[str, ...]
    killers: tuple[str, ...]
    edits: tuple[Edit, ...]
    postgres: bool = False
    """Whether its killers need PostgreSQL: SQLite, with its one writer, cannot show it."""


def mutant(
    name: str,
    rule: str,
    statements: str,
    killer: str,
    file: str,
    *change: str,
    postgres: bool = False,
) -> Mutant:
    """Return the mutant of one file. ``change`` is old text, new text, and so on."""
    edits = tuple(
        Edit(f"{file}.py", old, new) for old, new in zip(change[::2], change[1::2], strict=True)
    )
    told = tuple(part.strip() for part in statements.split(","))
    return Mutant(name, rule, told, tuple(killer.split()), edits, postgres)


FENCES = (
    mutant(
        "step_attempt_not_compared",
        "a step is only changed by whoever knows its present attempt",
        "W-3, INV-5",
        f"{WRITER}::test_a_step_that_is_not_what_it_was_is_not_written",
        "orchestration/store",
        '        _steps.c.attempt == bindparam("was_attempt"),\n',
        "",
    ),
    mutant(
        "step_state_not_compared",
        "a step is only changed from the state that was decided on",
        "W-3, COL-04",
        f"{WRITER}::test_a_step_that_is_not_what_it_was_is_not_written",
        "orchestration/store",
        '        _steps.c.state == bindparam("was_state"),\n',
        "",
    ),
    mutant(
        "saga_state_not_compared",
        "a saga is only changed from the state that was decided on",
        "W-3, INV-14",
        f"{WRITER}::test_a_saga_that_is_not_what_it_was_is_not_written",
        "orchestration/writer",
        '_sagas.c.id == bindparam("was_saga"), _sagas.c.state == bindparam("was_state")',
        '_sagas.c.id == bindparam("was_saga")',
    ),
    mutant(
        "attempt_ended_twice",
        "an attempt that has ended keeps its end",
        "INV-5",
        f"{WRITER}::test_an_attempt_that_has_ended_is_not_ended_again",
        "orchestration/writer",
        "update(_attempts).where(*ATTEMPT, _attempts.c.state == AttemptState.OPEN)",
        "update(_attempts).where(*ATTEMPT)",
    ),
    mutant(
        "lost_race_not_noticed",
        "a write that finds no row is decided again",
        "W-3, D-11",
        f"{WRITER}::test_a_step_that_is_not_what_it_was_is_not_written",
        "orchestration/statement",
        "strict=True) if count != 1]",
        "strict=True) if count > 1]",
    ),
    mutant(
        "report_attempt_not_compared",
        "only the attempt that holds the lease is heard",
        "W-3, SAS-10",
        f"{LATE}::test_a_late_report_changes_no_state_and_is_kept_as_evidence",
        "orchestration/decide",
        "    if step.state is not StepState.LEASED or step.attempt != event.attempt:\n",
        "    if step.state is not StepState.LEASED:\n",
    ),
    mutant(
        "report_state_not_compared",
        "an attempt whose lease was taken away is not heard",
        "W-3, SAS-10",
        f"{LATE}::test_a_late_success_proves_the_effect_of_a_step_that_is_still_open",
        "orchestration/decide",
        "    if step.state is not StepState.LEASED or step.attempt != event.attempt:\n",
        "    if step.attempt != event.attempt:\n",
    ),
    mutant(
        "loss_attempt_not_compared",
        "the loss of an old attempt takes nothing from the present one",
        "W-3, INV-5",
        f"{DECIDE}::test_the_loss_of_an_attempt_that_no_longer_holds_the_lease_changes_nothing",
        "orchestration/decide",
        "    if step.state is StepState.LEASED and step.attempt == event.attempt:\n",
        "    if step.state is StepState.LEASED:\n",
    ),
    mutant(
        "crash_attempt_not_compared",
        "the crash of an old message does not count against the present one",
        "W-3, D-25",
        f"{DECIDE}::test_the_crash_of_another_attempt_changes_nothing",
        "orchestration/decide",
        "    if step.state is not StepState.DISPATCHED or step.attempt + 1 != event.attempt:\n",
        "    if step.state is not StepState.DISPATCHED:\n",
    ),
    mutant(
        "crash_of_a_question_counted",
        "a process that dies with a question counts against no attempt",
        "D-25",
        f"{NODE}::test_a_child_that_dies_with_a_question_counts_against_no_attempt",
        "tasks/node",
        " and operation in TAKE_A_LEASE:\n",
        " and operation:\n",
    ),
    mutant(
        "answer_number_not_compared",
        "the answer to an earlier question decides nothing",
        "D-05, D-14",
        f"{DECIDE}::test_an_answer_to_an_earlier_question_is_kept_as_evidence_and_not_acted_on",
        "orchestration/decide",
        "    if step.state is not StepState.UNKNOWN or step.inquiry_no != event.inquiry_no:\n",
        "    if step.state is not StepState.UNKNOWN:\n",
    ),
    mutant(
        "question_number_not_compared",
        "a question that nobody asks any more is not put to the remote",
        "D-05",
        f"{LEASE}::test_a_question_that_nobody_asks_any_more_is_dropped",
        "orchestration/lease",
        "step.state is StepState.UNKNOWN and step.inquiry_no == number",
        "step.state is StepState.UNKNOWN",
    ),
    mutant(
        "heartbeat_attempt_not_compared",
        "an attempt that lost its lease cannot keep another one alive",
        "W-3, SAS-10",
        f"{LEASE}::test_a_heartbeat_of_an_earlier_attempt_does_not_keep_the_present_one_alive",
        "orchestration/store",
        'now().label("now")).where(*_same_step())',
        'now().label("now")).where(*_same_step()[:2], _same_step()[3])',
    ),
    mutant(
        "heartbeat_state_not_compared",
        "a lease that was taken away is not renewed",
        "W-3, SAS-10",
        f"{LEASE}::test_a_heartbeat_without_the_lease_is_refused_and_changes_nothing",
        "orchestration/store",
        'now().label("now")).where(*_same_step())',
        'now().label("now")).where(*_same_step()[:3])',
    ),
    mutant(
        "heartbeat_moves_the_deadline",
        "a heartbeat never makes a lease longer",
        "SAS-05, T-2",
        f"{LEASE}::test_a_heartbeat_moves_the_time_of_the_next_look_but_not_the_deadline",
        "orchestration/store",
        "min(held.deadline_at, held.now + silence)",
        "held.now + silence",
    ),
    mutant(
        "node_that_spoke_is_ended",
        "a node that has spoken since it was looked at keeps its leases",
        "D-11, D-16",
        f"{ROSTER}::test_a_node_that_speaks_at_the_last_moment_is_not_ended",
        "orchestration/roster",
        "                _nodes.c.heartbeat_at == heartbeat_at,\n",
        "",
    ),
)

GRANTS = (
    Mutant(
        "second_grant_of_a_lease",
        "a leased step is given to nobody else",
        ("COL-02", "D-03", "INV-1"),
        (LEASE,),
        (
            Edit(
                "orchestration/lease.py", "if step.attempt >= number:", "if step.attempt > number:"
            ),
            Edit(
                "orchestration/lease.py",
                "if step.attempt + 1 != number or step.state is not StepState.DISPATCHED:",
                "if step.attempt > number:",
            ),
            Edit(
                "orchestration/store.py",
                '"was_state": StepState.DISPATCHED,',
                '"was_state": step.state,',
            ),
        ),
    ),
    mutant(
        "lost_grant_not_noticed",
        "of two that ask for one lease at once, one gets it",
        "COL-02, SAS-13",
        f"{RACES}::test_one_of_many_workers_gets_the_lease",
        "orchestration/store",
        "return _GRANT.change(connection, **taken, **new) == 1",
        "return _GRANT.change(connection, **taken, **new) <= 1",
        postgres=True,
    ),
    mutant(
        "marker_beside_the_step",
        "the send marker stands in the step's own row",
        "W-2, INV-7",
        f"{LEASE}::test_a_grant_opens_the_attempt_with_a_time_by_which_it_is_over",
        "orchestration/store",
        '"state": StepState.LEASED, "attempt": number,',
        '"state": StepState.DISPATCHED, "attempt": step.attempt,',
    ),
    mutant(
        "unknown_definition_taken",
        "a worker leaves alone what its code does not know",
        "D-22, GM-08",
        f"{LEASE}::test_a_worker_leaves_a_step_of_a_definition_that_it_does_not_know",
        "orchestration/lease",
        "    return None if known else UNKNOWN_DEFINITION",
        "    return None",
    ),
    mutant(
        "sent_after_the_lease",
        "a process whose lease is over sends nothing",
        "D-12, SAS-10, INV-1",
        f"{ENVELOPE}::test_a_process_that_was_stopped_until_its_lease_was_over_sends_nothing",
        "tasks/envelope",
        "        if self.clock.monotonic() >= ends_at:\n",
        "        if self.clock.monotonic() < 0:\n",
    ),
    mutant(
        "unheard_grant_left_to_run_out",
        "a lease whose grant was kept unconfirmed is given back by its process",
        "D-08",
        f"{ENVELOPE}::test_a_grant_that_was_kept_though_its_commit_failed_is_given_back_at_once",
        "orchestration/lease",
        "            if held.saga_id == saga_id and held.path in paths:\n",
        "            if held.saga_id == saga_id and held.path not in paths:\n",
    ),
    mutant(
        "unheard_inline_lease_left_to_run_out",
        "a lease that came with an unconfirmed report is given back by its process",
        "D-08",
        f"{ENVELOPE}::test_a_lease_that_was_granted_with_an_unconfirmed_report_is_given_back",
        "tasks/envelope",
        "        if tries > 1 and work.followers:\n",
        "        if tries < 1 and work.followers:\n",
    ),
    mutant(
        "inline_step_sent_as_well",
        "a step that is gone on with is sent to nobody else",
        "D-05",
        f"{ENVELOPE}::test_what_is_inline_is_run_in_the_task_of_the_step_before_it",
        "orchestration/scheduler",
        "        rest = [send for send in sends if send is not taken]\n",
        "        rest = [send for send in sends if send is not event]\n",
    ),
    mutant(
        "lease_counted_from_its_arrival",
        "a lease counts from before it was asked for",
        "D-12, SAS-10, INV-1",
        f"{ENVELOPE}::test_a_process_that_was_stopped_until_its_lease_was_over_sends_nothing",
        "tasks/envelope",
        "= work, _end(asked_at, work)\n",
        "= work, _end(self.clock.monotonic(), work)\n",
    ),
    mutant(
        "turned_round_step_keeps_its_attempt",
        "the message of an action never opens the attempt of its compensation",
        "W-3, INV-5",
        f"{DECIDE}::test_the_message_of_an_action_never_opens_the_attempt_of_its_compensation",
        "orchestration/draft",
        "(after, attempt=step.attempt + 1)",
        "(after, attempt=step.attempt)",
    ),
    mutant(
        "horizon_without_what_is_inline",
        "a horizon counts all that a task may go on with",
        "T-2, T-3",
        f"{DECIDE}::test_a_horizon_counts_all_that_a_task_may_go_on_with",
        "orchestration/doubt",
        "settle_horizon(draft.lasting(step))",
        "settle_horizon(draft.plan(step).timeout)",
    ),
    mutant(
        "process_outlives_its_horizon",
        "a process is killed within the grace that the horizon counts",
        "T-2, T-3",
        f"{SCHEDULER}::test_a_process_is_killed_within_the_time_that_the_horizon_counts",
        "orchestration/scheduler",
        "        time_limit=timeout + KILL_GRACE,\n",
        "        time_limit=timeout + 2 * KILL_GRACE,\n",
    ),
)

KEYS = (
    mutant(
        "key_of_each_attempt",
        "every attempt sends the same key",
        "K-1, SAS-09, INV-1",
        f"{SCHEDULER}::test_an_action_and_its_undo_are_told_apart_and_belong_together_by_their_keys",
        "orchestration/lease",
        "key=idempotency_key(saga_id, step.path, direction, step.incarnation)",
        "key=idempotency_key(saga_id, step.path, direction, attempt)",
    ),
    mutant(
        "key_without_incarnation",
        "a closed key is never used again",
        "K-2",
        f"{SNAPSHOT}::test_each_operation_has_a_key_of_its_own",
        "orchestration/snapshot",
        '"{saga_id}/{path}/{direction}/{incarnation}"',
        '"{saga_id}/{path}/{direction}"',
    ),
    mutant(
        "undo_under_the_key_of_the_action",
        "an action and its undo are told apart by their keys",
        "K-1, CT-08",
        f"{SNAPSHOT}::test_each_operation_has_a_key_of_its_own",
        "orchestration/snapshot",
        '"{saga_id}/{path}/{direction}/{incarnation}"',
        '"{saga_id}/{path}/{incarnation}"',
    ),
    mutant(
        "closed_key_used_again",
        "what is tried again after a close gets a new key",
        "K-2, row 18",
        f"{RECOVERY}::test_row_18_what_is_not_idempotent_is_closed_first_and_sent_again_under_a_new_key",
        "orchestration/recovery",
        'return Verdict(row="18", action=Action.RETRY, why=why, new_key=True)',
        'return Verdict(row="18", action=Action.RETRY, why=why)',
    ),
    mutant(
        "retention_margin_not_counted",
        "a key is not sent in the last minute in which it is remembered",
        "K-4, row 13",
        f"{CONTRACT}::test_a_key_is_used_up_to_a_margin_before_it_is_forgotten",
        "orchestration/contract",
        "age + lasting + MARGIN < self.key_retention",
        "age < self.key_retention",
    ),
    mutant(
        "retention_not_checked_when_a_retry_is_due",
        "a key that was forgotten while a retry waited is not sent",
        "K-4, row 13",
        f"{DECIDE}::test_a_retry_is_not_sent_when_the_key_was_forgotten_while_it_waited",
        "orchestration/decide",
        "        if key_forgotten(step, draft.contract(step), draft.lasting(step), draft.now):",
        "        if False:",
    ),
    mutant(
        "retention_without_the_call",
        "a key is still remembered when the last call under it ends",
        "K-4, row 13",
        f"{RECOVERY}::test_row_13_else_the_horizon_is_waited_for",
        "orchestration/contract",
        "age + lasting + MARGIN",
        "age + MARGIN",
    ),
    mutant(
        "retention_not_checked_by_the_grant",
        "no message opens an attempt under a key that may be forgotten",
        "K-4, row 13",
        f"{LEASE}::test_a_message_that_comes_when_its_key_may_be_forgotten_opens_no_attempt",
        "orchestration/lease",
        "if refusal is None and key_forgotten(",
        "if refusal == () and key_forgotten(",
    ),
    mutant(
        "retention_not_checked_when_sent_again",
        "no message is sent again for a key that may be forgotten",
        "K-4, row 13",
        f"{LEASE}::test_a_message_that_comes_when_its_key_may_be_forgotten_opens_no_attempt",
        "orchestration/decide",
        "\n    if key_forgotten(",
        "\n    if () == key_forgotten(",
    ),
    mutant(
        "absence_of_a_forgotten_key_counts",
        "that a key is unknown proves nothing once it may be forgotten",
        "K-4, row 13",
        f"{RECOVERY}::test_row_13_that_a_key_is_unknown_proves_nothing_once_it_may_be_forgotten",
        "orchestration/recovery",
        "unknowable = isinstance(case.answer, Absent) and not case.contract.key_alive(case.age)",
        "unknowable = False",
    ),
    mutant(
        "retention_not_checked_by_definition",
        "a plan whose retries outlast the key is refused",
        "K-4",
        f"{SAFETY}::test_retries_must_end_before_the_key_is_forgotten",
        "orchestration/safety",
        "    if horizon + MARGIN >= contract.key_retention:\n",
        "    if horizon >= contract.key_retention + MARGIN:\n",
    ),
    mutant(
        "operator_sends_a_forgotten_key",
        "no operator can send a key that may be forgotten",
        "K-4, D-29",
        f"{COMMAND}::test_a_retry_is_refused_where_the_key_may_be_forgotten",
        "orchestration/command",
        "        if not contract.key_alive(age, draft.lasting(step)):\n",
        "        if False:\n",
    ),
    mutant(
        "age_counts_from_the_last_send",
        "the age of a key counts from its first send",
        "K-4",
        f"{DECIDE}::test_the_age_of_a_key_counts_from_the_first_time_that_it_was_sent",
        "orchestration/doubt",
        "step.doubt_at or step.granted_at\n    else",
        "step.granted_at\n    else",
    ),
    mutant(
        "start_key_not_stored",
        "two starts with one key make one saga",
        "D-01, SAS-15",
        f"{SCHEDULER}::test_the_same_key_with_the_same_input_returns_the_saga_that_is_there",
        "orchestration/scheduler",
        '            "key": key,\n',
        '            "key": None,\n',
    ),
    mutant(
        "start_with_another_input_accepted",
        "one key stands for one input",
        "D-01, IC-06",
        f"{SCHEDULER}::test_the_same_key_with_another_input_is_an_error_that_names_both",
        "orchestration/scheduler",
        "        if row.input != value:\n",
        "        if row.input == ():\n",
    ),
)

DOUBTS = (
    mutant(
        "doubt_not_recorded",
        "a lost lease leaves a doubt",
        "D-06, row 1",
        f"{DECIDE}::test_siblings_in_flight_are_settled_before_what_preceded_the_fork_is_undone",
        "orchestration/doubt",
        'changes["doubt_at"] = step.doubt_at or step.granted_at',
        'changes["doubt_at"] = step.doubt_at',
    ),
    mutant(
        "definite_no_settles_an_earlier_doubt",
        "the failure of one attempt says nothing about an earlier one",
        "INV-3, row 1",
        f"{DECIDE}::test_a_permanent_failure_does_not_settle_what_an_earlier_attempt_may_have_done",
        "orchestration/decide",
        "        failure_count=failure_count,\n",
        "        failure_count=failure_count,\n        doubt_at=None,\n",
    ),
    mutant(
        "doubt_skipped_when_turning_back",
        "a step in doubt is settled, not skipped, when its saga turns back",
        "INV-3, D-28",
        DECIDE,
        "orchestration/doubt",
        "if step.state in MAY_BE_UNSENT and step.doubt_at is None:",
        "if step.state in MAY_BE_UNSENT:",
    ),
    mutant(
        "doubtful_pivot_not_past_return",
        "a pivot that may have been sent is past the point of no return",
        "CT-12, D-21",
        f"{DECIDE}::test_a_cancel_is_refused_once_the_pivot_may_have_taken_effect",
        "orchestration/draft",
        "unsent = pivot.state in MAY_BE_UNSENT and not pivot.doubt_at",
        "unsent = pivot.state in MAY_BE_UNSENT",
    ),
    mutant(
        "resent_when_absent",
        "absence alone does not permit a second send of what is not idempotent",
        "INV-1, row 18",
        f"{RECOVERY}::test_row_18_what_is_not_idempotent_is_closed_first_and_sent_again_under_a_new_key",
        "orchestration/recovery",
        "    if case.contract.idempotent and not case.giving_up:\n",
        "    if not case.giving_up:\n",
    ),
    mutant(
        "resent_before_the_horizon",
        "what is not idempotent is not sent again before the horizon",
        "INV-1, row 19",
        f"{RECOVERY}::test_row_18_without_a_close_it_is_never_sent_again_before_the_horizon",
        "orchestration/recovery",
        '        if case.to_horizon > timedelta(0):\n            why = "absent so far; not',
        '        if case.to_horizon > timedelta(9):\n            why = "absent so far; not',
    ),
    mutant(
        "given_up_before_the_horizon",
        "absence does not permit giving up before the horizon",
        "INV-3, row 16",
        f"{RECOVERY}::test_row_16_absence_proves_nothing_before_the_horizon",
        "orchestration/recovery",
        '        if case.to_horizon > timedelta(0):\n            row = "21"',
        '        if case.to_horizon > timedelta(9):\n            row = "21"',
    ),
    mutant(
        "answer_from_before_the_horizon_counts",
        "an answer to a question from before the horizon does not count",
        "D-14, row 17",
        f"{DECIDE}::test_an_answer_to_a_question_from_before_the_horizon_does_not_count",
        "orchestration/doubt",
        "    if isinstance(answer, Absent) and step.asked_at and step.asked_at < settled_at:\n",
        "    if False:\n",
    ),
    mutant(
        "horizon_without_the_lease",
        "the horizon counts the time of the lease",
        "T-3",
        f"{CONTRACT}::test_the_horizon_counts_everything_that_can_delay_a_request_or_its_sight",
        "orchestration/contract",
        "timeout + KILL_GRACE + self.request_lifetime + self.probe_staleness",
        "KILL_GRACE + self.request_lifetime + self.probe_staleness",
    ),
    mutant(
        "horizon_without_the_kill_grace",
        "the horizon counts the time that a process may outlive its lease",
        "T-3",
        f"{CONTRACT}::test_the_horizon_counts_everything_that_can_delay_a_request_or_its_sight",
        "orchestration/contract",
        "timeout + KILL_GRACE + self.request_lifetime + self.probe_staleness",
        "timeout + self.request_lifetime + self.probe_staleness",
    ),
    mutant(
        "horizon_without_the_request_lifetime",
        "the horizon counts the time that a request may be on its way",
        "T-3",
        f"{CONTRACT}::test_the_horizon_counts_everything_that_can_delay_a_request_or_its_sight",
        "orchestration/contract",
        "timeout + KILL_GRACE + self.request_lifetime + self.probe_staleness",
        "timeout + KILL_GRACE + self.probe_staleness",
    ),
    mutant(
        "horizon_without_the_staleness",
        "the horizon counts the time that a probe may lag behind",
        "T-3",
        f"{CONTRACT}::test_the_horizon_counts_everything_that_can_delay_a_request_or_its_sight",
        "orchestration/contract",
        "timeout + KILL_GRACE + self.request_lifetime + self.probe_staleness",
        "timeout + KILL_GRACE + self.request_lifetime",
    ),
    mutant(
        "sent_without_a_question_after_lost_commits",
        "what may have been sent in commits that were lost is asked about first",
        "D-17, INV-1",
        DISTRUST,
        "orchestration/decide",
        "    if step.doubt_at is not None:\n        settle(draft, step, None, why=LOST_COMMITS",
        "    if step.doubt_at == ():\n        settle(draft, step, None, why=LOST_COMMITS",
    ),
    mutant(
        "poison_tried_for_ever",
        "a message that kills its workers is put aside",
        "D-25, row 25",
        f"{RECOVERY}::test_row_25_a_message_that_kills_its_workers_is_poison",
        "orchestration/recovery",
        "    if case.crashes >= CRASH_LIMIT:\n",
        "    if case.crashes >= 1000:\n",
    ),
)

UNDOING = (
    mutant(
        "undo_without_a_barrier",
        "an undo that does not close the key never overtakes its action",
        "INV-3, row 21",
        f"{RECOVERY}::test_row_15_does_not_hold_for_a_plain_undo",
        "orchestration/recovery",
        "            and contract.compensation_closes_key\n",
        "",
    ),
    mutant(
        "undo_behind_the_pivot",
        "nothing is undone at or after the pivot",
        "CT-12, row 15",
        f"{RECOVERY}::test_row_15_holds_only_before_the_pivot",
        "orchestration/recovery",
        "            self.position is Position.BEFORE\n            and contract",
        "            contract",
    ),
    mutant(
        "undone_in_forward_order",
        "a sequence is undone from its end",
        "GM-12, INV-4",
        f"{DECIDE}::test_a_failure_undoes_what_was_done_in_reverse_order",
        "orchestration/plan",
        "        for child in reversed(node.children):\n",
        "        for child in node.children:\n",
    ),
    mutant(
        "predecessor_not_awaited",
        "a step starts when the one before it is done",
        "SAS-01, SAS-07",
        f"{PLAN}::test_forward",
        "orchestration/plan",
        "            done, paths = ready(child, steps)\n            if not done:\n",
        "            done, paths = ready(child, steps)\n            if paths:\n",
    ),
    mutant(
        "result_lost_by_the_undo",
        "what an undo needs is kept when the undo succeeds",
        "CT-07, REC-04",
        f"{DECIDE}::test_the_result_that_an_undo_needs_is_kept_when_the_undo_succeeds",
        "orchestration/decide",
        '        **({} if backward else {"result": result}),\n',
        "        result=result,\n",
    ),
    mutant(
        "cancelled_after_the_pivot",
        "a cancel after the pivot is refused",
        "CT-12, D-21",
        f"{DECIDE}::test_a_cancel_is_refused_once_the_pivot_may_have_taken_effect",
        "orchestration/command",
        "    if pivot is not None:\n",
        "    if pivot is not None and draft.late:\n",
    ),
    mutant(
        "pivot_undone_by_the_deadline",
        "after the pivot a deadline turns nothing back",
        "CT-12, row 5",
        f"{DECIDE}::test_a_saga_past_its_deadline_and_its_pivot_goes_forward_and_somebody_is_told",
        "orchestration/decide",
        "    if not draft.aborting and pivot is None:\n",
        "    if not draft.aborting:\n",
    ),
    mutant(
        "stuck_undo_tells_nobody",
        "somebody is told of a compensation that does not succeed",
        "CT-14, row 23",
        f"{RECOVERY}::test_row_23_a_compensation_is_repeated_without_end_and_somebody_is_told",
        "orchestration/recovery",
        'alert="compensation_stuck" if stuck else None',
        "alert=None",
    ),
)

LATECOMERS = (
    mutant(
        "ended_saga_revived",
        "a saga that has ended never changes",
        "INV-14, row 24",
        f"{LATE}::test_a_step_that_was_given_up_on_absence_is_looked_out_for_until_its_key_is_forgotten",
        "orchestration/decide",
        "    if draft.saga.state in SAGA_TERMINAL:\n        return\n    tree",
        "    tree",
    ),
    mutant(
        "late_success_not_undone",
        "the late success of a step that was given up is undone",
        "D-20, INV-3, row 24",
        f"{LATE}::test_a_success_that_is_reported_after_the_end_is_undone_and_not_revived",
        "orchestration/late",
        "given_up = step.state in {StepState.FAILED, StepState.SKIPPED} or",
        "given_up =",
    ),
    mutant(
        "late_success_settles_what_has_ended",
        "a late success settles only a step that is still open",
        "INV-14, row 3",
        f"{LATE}::test_a_late_report_changes_no_state_and_is_kept_as_evidence",
        "orchestration/late",
        "    if same and step.state in _OPEN:\n",
        "    if same:\n",
    ),
    mutant(
        "late_success_of_another_key_adopted",
        "a late success proves the effect of its own key only",
        "K-2, row 24",
        f"{LATE}::test_an_effect_under_a_key_that_was_given_up_is_undone_while_the_saga_goes_on",
        "orchestration/late",
        "step.direction is event.direction and step.incarnation == event.incarnation",
        "step.direction is event.direction",
    ),
    mutant(
        "no_watch_for_a_late_effect",
        "what was given up on its absence is looked out for",
        "row 17, D-13",
        f"{RECOVERY}::test_row_17_absence_after_the_horizon_ends_the_step_and_keeps_looking_out",
        "orchestration/recovery",
        'return Verdict(row="17", action=Action.GIVE_UP, why=why, watch=True)',
        'return Verdict(row="17", action=Action.GIVE_UP, why=why)',
    ),
    mutant(
        "evidence_dropped",
        "what is refused is kept with its attempt",
        "W-4",
        f"{WRITER}::test_evidence_is_journaled_and_kept_with_its_attempt",
        "orchestration/writer",
        'late=refusal.evidence | {"name": refusal.name, "at": now.isoformat()}',
        "late=None",
    ),
)

TIMES = (
    mutant(
        "application_clock_decides",
        "what is decided is decided by the database's clock",
        "T-1, D-16",
        f"{SUPERVISOR}::test_an_overdue_lease_is_taken_back_and_asked_about",
        "orchestration/store",
        "now=rows[0].now)",
        "now=datetime.now().astimezone())",
    ),
    mutant(
        "application_clock_starts",
        "a deadline is set by the database's clock",
        "T-1, COL-03",
        f"{SCHEDULER}::test_a_started_saga_has_a_deadline_and_a_time_at_which_it_is_looked_at",
        "orchestration/store",
        "        now: datetime = self._time.all(connection)[0].now\n",
        "        now: datetime = datetime.now().astimezone()\n",
    ),
    mutant(
        "time_stands_still_in_a_transaction",
        "time goes on within a transaction",
        "T-1",
        f"{DATABASE}::test_time_goes_on_within_a_transaction",
        "orchestration/database",
        '"clock_timestamp()"',
        '"now()"',
        postgres=True,
    ),
    mutant(
        "touched_before_its_time",
        "what is not due is not touched",
        "SUP-12",
        f"{DECIDE}::test_a_step_whose_time_has_not_come_is_not_touched",
        "orchestration/decide",
        "    if step.wake_at is None or step.wake_at > draft.now:\n",
        "    if step.wake_at is None:\n",
    ),
    mutant(
        "dispatch_without_a_next_look",
        "whatever is under way is looked at again",
        "SAS-05, INV-6",
        f"{DECIDE}::test_a_running_step_always_has_a_time_by_which_it_is_looked_at",
        "orchestration/draft",
        "            wake_at=self.now + self.redelivery(step, 0),\n",
        "            wake_at=None,\n",
    ),
    mutant(
        "silent_node_not_ended",
        "a node that has gone silent loses its leases",
        "SAS-11, ORCH-04",
        f"{SUPERVISOR}::test_a_node_that_goes_silent_loses_its_leases_long_before_they_are_over",
        "orchestration/supervisor",
        "            self.roster.end_if_silent(node_id, heartbeat_at)\n",
        "            del node_id, heartbeat_at\n",
    ),
    mutant(
        "another_process_loses_its_lease",
        "the end of one process takes only its own leases",
        "INV-5, D-27",
        f"{ROSTER}::test_leases_are_found_by_their_node_and_its_process",
        "orchestration/roster",
        "                if pid in {None, row.pid}\n",
        "",
    ),
    mutant(
        "busy_saga_waited_for",
        "a sweep does not wait for a saga that somebody is working on",
        "SUP-12, SAS-14",
        f"{SUPERVISOR}::test_a_saga_that_somebody_is_working_on_is_skipped",
        "orchestration/store",
        "with_for_update(key_share=True, skip_locked=True)",
        "with_for_update(key_share=True)",
        postgres=True,
    ),
    mutant(
        "saga_not_locked",
        "what is decided about one saga is decided by one at a time",
        "D-11, D-20",
        f"{RACES}::test_two_late_successes_at_once_are_undone_once",
        "orchestration/store",
        "_LOCK_SAGA = Prepared(_SAGA.with_for_update(key_share=True))",
        "_LOCK_SAGA = Prepared(_SAGA)",
        postgres=True,
    ),
    mutant(
        "steps_not_locked",
        "a step is not decided about while its own agent writes to it",
        "D-11, SAS-14",
        f"{RACES}::test_a_sweep_waits_for_a_heartbeat_and_leaves_the_lease_alone",
        "orchestration/store",
        "self._lock_steps = Prepared(steps.with_for_update(key_share=True))",
        "self._lock_steps = Prepared(steps)",
        postgres=True,
    ),
    mutant(
        "steps_locked_before_their_saga",
        "the saga is locked before its steps",
        "D-24, SAS-13",
        f"{RACES}::test_whatever_decides_locks_the_saga_before_its_steps",
        "orchestration/store",
        "        row = (_LOCK_SAGA_IF_FREE if skip_locked",
        "        self._lock_steps.all(connection, saga=saga_id)\n"
        "        row = (_LOCK_SAGA_IF_FREE if skip_locked",
        postgres=True,
    ),
    mutant(
        "steps_locked_in_another_order",
        "steps are locked in the order of their paths",
        "D-24, SAS-13",
        f"{RACES}::test_whatever_decides_locks_steps_in_the_order_of_their_paths",
        "orchestration/store",
        ".where(mine).order_by(_steps.c.path)\n",
        ".where(mine).order_by(_steps.c.path.desc())\n",
        postgres=True,
    ),
)

MESSAGES = (
    mutant(
        "start_sent_before_its_commit",
        "a message is sent after the commit of its row",
        "W-1, O-2, SAS-03",
        f"{SCHEDULER}::test_a_message_is_sent_after_its_row_is_committed",
        "orchestration/scheduler",
        "            handle, dispatches = self._start(own, workflow, input, key)\n"
        '        reach("p0")\n'
        "        self.dispatcher.publish(dispatches)\n",
        "            handle, dispatches = self._start(own, workflow, input, key)\n"
        "            self.dispatcher.publish(dispatches)\n"
        '        reach("p0")\n',
    ),
    mutant(
        "step_sent_before_its_commit",
        "a message is sent after the commit of its row",
        "W-1, O-2, SAS-04",
        f"{SCHEDULER}::test_a_message_is_sent_after_its_row_is_committed",
        "orchestration/scheduler",
        '            reach("p1")\n'
        "        rest = [send for send in sends if send is not taken]\n"
        "        return True, self._dispatches(definition, saga_id, rest)\n",
        "            self.dispatcher.publish(self._dispatches(definition, saga_id, decisions))\n"
        '            reach("p1")\n'
        "        return True, []\n",
    ),
    mutant(
        "sent_before_the_callers_commit",
        "a start in the caller's transaction is sent after its commit",
        "COL-01, OB-01",
        f"{OUTBOX}::test_a_saga_is_committed_together_with_the_callers_row_and_then_sent",
        "orchestration/scheduler",
        "                joined.after_commit(handle.publish)\n",
        "                handle.publish()\n",
    ),
    mutant(
        "sent_by_the_release_of_a_savepoint",
        "the release of a savepoint is no commit",
        "COL-01, OB-01",
        f"{OUTBOX}::test_the_release_of_a_savepoint_is_no_commit",
        "orchestration/outbox",
        "    if session.in_nested_transaction():",
        "    if False:",
    ),
    mutant(
        "sent_though_rolled_back",
        "what the caller rolled back is never sent",
        "COL-01, D-01",
        f"{OUTBOX}::test_a_saga_is_rolled_back_together_with_the_callers_row_and_never_sent",
        "orchestration/outbox",
        '        event.listen(session, "after_rollback", _forget)\n',
        "",
    ),
    mutant(
        "started_without_a_transaction",
        "a start is in the caller's transaction, or refused",
        "COL-01",
        f"{BORROWED}::test_without_an_open_transaction_a_start_is_refused_and_writes_nothing",
        "orchestration/borrowed",
        "    if _commits_by_itself(dialect, driver):",
        "    if False:",
    ),
    mutant(
        "adapters_of_the_callers_connection",
        "what the caller has set on a connection does not matter",
        "COL-01",
        f"{BORROWED}::test_what_the_caller_has_set_on_a_connection_does_not_matter",
        "orchestration/borrowed",
        "        adapters = property(lambda _: psycopg.adapters)\n",
        "        pass\n",
        postgres=True,
    ),
    mutant(
        "rung_for_every_time",
        "a partner that rings is asked once a second at most",
        "INV-12",
        f"{DOUBT}::test_however_often_a_partner_rings_it_is_asked_once_a_second",
        "orchestration/draft",
        "max(step.asked_at + POLL - self.now, nothing) if step.asked_at else nothing",
        "nothing",
    ),
    mutant(
        "ring_counted",
        "a question that was rung for is not counted as asked in vain",
        "row 11",
        f"{DOUBT}::test_a_ring_is_not_counted_among_the_questions_asked_in_vain",
        "orchestration/doubt",
        "wait=wait, counted=False)",
        "wait=wait)",
    ),
    mutant(
        "news_forgotten",
        "news that comes while a question is under way is asked about after it",
        "row 8",
        f"{DOUBT}::test_a_ring_while_a_question_is_under_way_is_followed_by_another_question",
        "orchestration/draft",
        "        return min(wait, self.soonest(step)) if hastened else wait\n",
        "        return wait\n",
    ),
    mutant(
        "silence_is_not_kept",
        "an agent that lost its lease says nothing",
        "SAS-10",
        f"{ENVELOPE}::test_an_agent_that_lost_its_lease_says_nothing",
        "tasks/envelope",
        "    except LeaseLostError:\n",
        "    except ZeroDivisionError:\n",
    ),
    mutant(
        "incident_opened_twice",
        "one question is open once",
        "INV-10, CT-05",
        f"{WRITER}::test_an_incident_is_open_once_for_each_path_and_kind",
        "orchestration/writer",
        "    if _OPEN_INCIDENT.first(connection, **where) is not None:\n        return None\n",
        "",
    ),
    mutant(
        "incidents_of_others_closed",
        "the answer to one question answers no other",
        "INV-10, CT-05",
        f"{WRITER}::test_an_incident_is_open_once_for_each_path_and_kind",
        "orchestration/writer",
        '    _incidents.c.path == bindparam("was_path"),\n',
        "",
    ),
)

MUTANTS = (*FENCES, *GRANTS, *KEYS, *DOUBTS, *UNDOING, *LATECOMERS, *TIMES, *MESSAGES)
