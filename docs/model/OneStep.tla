------------------------------ MODULE OneStep ------------------------------
(* The life of one step: its row, its attempts, its messages, its requests, its remote service.    *)
(* The README beside this file says what each action is in the code and what is left out.          *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Position,     \* some of "before", "pivot", "after": where the step stands, seen from the pivot
    Idempotent,   \* sets of what its agent may declare, as in orchestration/contract.py; every
    Probe,        \* combination that orchestration/safety.py accepts is tried
    Close,
    Comp,
    Barrier,      \* compensation_closes_key
    Lifetime,     \* request_lifetime is declared, and the remote refuses what is older
    AtMostOnce,
    Retention,    \* the ticks for which the remote remembers a key; 0: for ever
    Timed,        \* FALSE: everything that waits for time may happen at once
    MayPause,     \* a process may sleep through its hard time limit (SIGSTOP, a paused machine)
    Stamped,      \* a request carries the end of its lease, and its lifetime counts from there
    MayCancel,
    MayBeLate,    \* the saga's deadline may pass
    Noes,         \* which "no" the remote may say: "request" (not stored) and "key" (stored)
    MaxAttempts,
    UnclearLimit,
    Faults,       \* crashes, pauses, losses, stale answers and refusals in one behaviour
    Supervisors,  \* those that act some time after they looked; another one acts at once
    Removed       \* the rules that are left out, to see that each is needed

VARIABLES
    agent,   \* what is declared; never changes
    db,      \* what is committed, and what was handed to the broker
    proc,    \* one process for each attempt
    net,     \* requests on their way
    remote,  \* keys, as the remote knows them
    execs,   \* how often the action was executed, by incarnation
    answers, \* answers to questions that are under way
    seen,    \* messages whose worker has read the row (only where the marker is not in the row)
    found,   \* the attempt that a slow supervisor found overdue
    faults   \* faults that may still happen

vars == <<agent, db, proc, net, remote, execs, answers, seen, found, faults>>

Rule(name) == name \notin Removed

----------------------------------------------------------------------------
(* Time, in ticks; every term of the settle horizon is one tick long. *)

Timeout == 1
Grace == 1
RequestLife == 1
Staleness == 1
Margin == 1

Term(name, ticks) == IF Rule(name) THEN ticks ELSE 0
Horizon == Term("HORIZON_HAS_TIMEOUT", Timeout) + Term("HORIZON_HAS_GRACE", Grace)
    + Term("HORIZON_HAS_LIFETIME", RequestLife) + Term("HORIZON_HAS_STALENESS", Staleness)
FullHorizon == Timeout + Grace + RequestLife + Staleness
HasHorizon == agent.lifetime \/ ~Rule("HORIZON_NEEDS_ENFORCEMENT")
NetworkBounded == agent.lifetime \/ Retention > 0

Min(a, b) == IF a < b THEN a ELSE b
Older(age, limit) == Min(age + 1, limit)

----------------------------------------------------------------------------
(* Vocabulary *)

Attempts == 1 .. Faults + 4
StrayKey == IF Rule("STABLE_KEY") THEN Faults + 2 ELSE Faults + 5
    \* the key of the compensation, if an action is ever sent under it
Keys == 0 .. StrayKey
Live == {"dispatched", "leased", "retrying", "unknown"}
Final == {"failed", "skipped", "abandoned", "compensated"}
Unsent == {"dispatched", "retrying", "halted"}
SagaFinal == {"completed", "compensated", "cancelled"}
Open == {"unknown", "retrying", "dispatched", "halted"}
Idle == [pc |-> "idle", op |-> "none", dir |-> "forward", inc |-> 0, age |-> 0]
Gone == [Idle EXCEPT !.pc = "gone"]
Alive(a) == proc[a].pc \notin {"idle", "gone"}

Op(dir) == IF dir = "forward" THEN "action" ELSE "compensation"
KeyOf(inc, a) == IF Rule("STABLE_KEY") THEN inc ELSE a

(* safety.check_safety *)
Accepted(a) ==
    /\ a.barrier => a.comp
    /\ IF a.position = "after" THEN a.idempotent \/ a.close \/ a.at_most_once
       ELSE \/ a.idempotent \/ a.close \/ a.at_most_once
            \/ a.position = "before" /\ a.barrier
    /\ a.position = "before" <=> a.comp

Init ==
    /\ agent \in {a \in [position : Position, idempotent : Idempotent, probe : Probe,
                         close : Close, comp : Comp, barrier : Barrier, lifetime : Lifetime,
                         at_most_once : AtMostOnce] : Accepted(a)}
    /\ db = [st |-> "dispatched", dir |-> "forward", att |-> 0, inc |-> 0, fails |-> 0,
             doubt |-> FALSE, inq |-> "none", no |-> 0, asked |-> 0, sure |-> FALSE,
             hold |-> FALSE, wake |-> Rule("WAKE_ALWAYS_SET"), age |-> 0, keyAge |-> 0,
             saga |-> "running", abort |-> "no", late |-> FALSE, next |-> "waiting",
             watch |-> "none", watched |-> 0, incident |-> FALSE,
             closed |-> {}, twice |-> FALSE,
             msgs |-> {[op |-> "action", no |-> 1]}, qs |-> {}]
    /\ proc = [a \in Attempts |-> Idle]
    /\ net = {}
    /\ remote = [k \in Keys |-> [st |-> "fresh", eff |-> 0, age |-> 0]]
    /\ execs = [i \in Keys |-> 0]
    /\ answers = {}
    /\ seen = {}
    /\ found = [s \in Supervisors |-> 0]
    /\ faults = Faults

----------------------------------------------------------------------------
(* The recovery table: recovery.resolve *)

Aborting(d) == d.abort /= "no"
GivingUp(d) == d.fails >= MaxAttempts \/ d.late \/ Aborting(d)
ForwardOnly == agent.position = "after"
LeaseLength == IF Rule("KEY_OUTLIVES_LEASE") THEN Timeout + Grace ELSE 0
KeyAlive(d) ==
    Retention = 0 \/ ~Rule("RETENTION_CHECK") \/ d.keyAge + LeaseLength + Margin < Retention
KeyKnown(d) ==
    Retention = 0 \/ ~Rule("FORGOTTEN_PROVES_NOTHING") \/ d.keyAge + Margin < Retention
Repeatable == agent.idempotent \/ ~Rule("RESEND_NEEDS_KEY")
MayResend(d) == Repeatable /\ KeyAlive(d)
Undoable == agent.position = "before" /\ agent.comp /\ (agent.barrier \/ ~Rule("BARRIER_BEFORE_UNDO"))
Settled(d, ans) ==
    IF ans = "absent" /\ Rule("ABSENCE_ASKED_AFTER_HORIZON") THEN d.sure ELSE d.age >= Horizon

Verdict == [act |-> "none", op |-> "probe", wait |-> "usual", new |-> FALSE, watch |-> FALSE]
Retry == [Verdict EXCEPT !.act = "retry"]
RetryAnew == [Verdict EXCEPT !.act = "retry", !.new = TRUE]
Succeed == [Verdict EXCEPT !.act = "succeed"]
GiveUp == [Verdict EXCEPT !.act = "give_up"]
Undo == [Verdict EXCEPT !.act = "undo"]
Ask == [Verdict EXCEPT !.act = "ask"]
AskNow == [Verdict EXCEPT !.act = "ask", !.wait = "none"]
AskAtHorizon == [Verdict EXCEPT !.act = "ask", !.wait = "horizon"]
AskClose == [Verdict EXCEPT !.act = "ask", !.op = "close"]
Park == [Verdict EXCEPT !.act = IF agent.at_most_once THEN "abandon" ELSE "park"]
ParkAnyway == [Verdict EXCEPT !.act = "park"]
Unresolved == IF agent.at_most_once THEN Park ELSE Ask

Exit(d, ans) ==
    IF agent.close /\ ~ForwardOnly THEN AskClose
    ELSE IF Undoable THEN Undo
    ELSE IF ans = "absent" /\ ~Rule("ABSENCE_IS_NO_PROOF") THEN GiveUp
    ELSE IF agent.probe /\ HasHorizon /\ ~ForwardOnly THEN
        IF ans = "unclear" THEN Unresolved
        ELSE IF Settled(d, ans) THEN [GiveUp EXCEPT !.watch = TRUE]
        ELSE AskAtHorizon
    ELSE IF MayResend(d) THEN Retry
    ELSE IF ans = "unclear" THEN Unresolved
    ELSE Park

CloseFirst ==
    IF Rule("NEW_KEY_ONLY_AFTER_DEFINITE_NO") THEN AskClose ELSE RetryAnew

NotIdempotent(d, ans) ==
    IF agent.close THEN CloseFirst
    ELSE IF agent.probe /\ HasHorizon THEN IF Settled(d, ans) THEN Retry ELSE AskAtHorizon
    ELSE Exit(d, ans)

KeyDead(d, ans) ==
    IF agent.close THEN AskClose
    ELSE IF ForwardOnly \/ ~(Undoable \/ (KeyKnown(d) /\ HasHorizon)) THEN Park
    ELSE Exit(d, ans)

NeverSent(d) ==
    IF GivingUp(d) /\ ~ForwardOnly THEN GiveUp ELSE Retry

Unclear(d) ==
    LET settles == GivingUp(d) /\ ~ForwardOnly IN
    IF settles /\ (agent.close \/ Undoable) THEN Exit(d, "unclear")
    ELSE IF d.asked < UnclearLimit THEN Ask
    ELSE IF settles THEN Exit(d, "unclear")
    ELSE IF MayResend(d) THEN Retry
    ELSE IF agent.close THEN CloseFirst ELSE Unresolved

AbsentOrUnasked(d, ans) ==
    IF ans = "none" /\ agent.probe /\ ~(GivingUp(d) /\ agent.close /\ ~ForwardOnly) THEN AskNow
    ELSE IF (ans = "absent" /\ ~KeyKnown(d)) \/ (agent.idempotent /\ ~MayResend(d))
    THEN KeyDead(d, ans)
    ELSE IF Repeatable /\ ~GivingUp(d) THEN Retry
    ELSE IF ForwardOnly THEN IF MayResend(d) THEN Retry ELSE NotIdempotent(d, ans)
    ELSE IF GivingUp(d) THEN Exit(d, ans)
    ELSE NotIdempotent(d, ans)

Resolve(d, ans) ==
    IF ~d.doubt THEN NeverSent(d)
    ELSE CASE ans = "applied" ->
                IF Rule("APPLIED_IS_UNDONE") \/ ~Aborting(d) THEN Succeed ELSE GiveUp
           [] ans = "rejected" -> IF ForwardOnly THEN ParkAnyway ELSE GiveUp
           [] ans = "closed" -> IF GivingUp(d) /\ ~ForwardOnly THEN GiveUp ELSE RetryAnew
           [] ans = "unclear" -> Unclear(d)
           [] OTHER -> AbsentOrUnasked(d, ans)

----------------------------------------------------------------------------
(* Moves of the row: draft.Draft *)

Move(d, st, dir) ==
    LET still == st = "dispatched" /\ dir = d.dir
        used == d.st = "dispatched" /\ ~still /\ st \notin Final /\ Rule("ATTEMPT_IS_USED_UP")
    IN [d EXCEPT !.st = st, !.dir = dir, !.att = IF used THEN @ + 1 ELSE @,
                 !.inq = IF st = "unknown" THEN @ ELSE "none",
                 !.hold = FALSE, !.incident = FALSE,
                 !.wake = st \in Live /\ Rule("WAKE_ALWAYS_SET")]

Dispatch(d, dir) ==
    LET after == Move(d, "dispatched", dir)
    IN [after EXCEPT !.msgs = @ \cup {[op |-> Op(dir), no |-> after.att + 1]}]

UndoRow(d) ==
    [Dispatch(d, "backward") EXCEPT !.fails = 0, !.doubt = FALSE, !.keyAge = 0]

AskRow(d, op, wait) ==
    LET after == Move(d, "unknown", d.dir) IN
    IF wait /= "now" THEN [after EXCEPT !.inq = "none", !.hold = wait = "horizon"]
    ELSE [after EXCEPT !.inq = op, !.no = @ + 1, !.asked = Min(@ + 1, UnclearLimit),
                       !.sure = d.age >= Horizon,
                       !.qs = @ \cup {[no |-> d.no + 1, op |-> op, inc |-> d.inc, att |-> d.att]}]

WatchFor(d) ==
    IF d.watch = "none" /\ Rule("LATE_WATCH")
    THEN [d EXCEPT !.watch = "watching", !.watched = d.inc] ELSE d

Closes(d, a) == [d EXCEPT !.closed = @ \cup {a}, !.twice = @ \/ a \in d.closed]

(* doubt.settle *)
Settle(d, ans) ==
    LET v == Resolve(d, ans)
        first == v.op = "close" /\ d.inq /= "close"
        wait == IF v.wait = "horizon" THEN "horizon"
                ELSE IF v.wait = "none" \/ first \/ ans = "none" THEN "now" ELSE "spaced"
    IN CASE v.act = "retry" /\ v.new ->
              [Move(d, "retrying", d.dir) EXCEPT !.inc = @ + 1, !.doubt = FALSE, !.keyAge = 0]
         [] v.act = "retry" /\ ~v.new -> Move(d, "retrying", d.dir)
         [] v.act = "succeed" -> Move(d, "succeeded", d.dir)
         [] v.act = "give_up" ->
              LET after == Move(d, "failed", d.dir) IN IF v.watch THEN WatchFor(after) ELSE after
         [] v.act = "ask" -> AskRow(d, v.op, wait)
         [] v.act = "undo" -> UndoRow(d)
         [] v.act = "park" -> [Move(d, "halted", d.dir) EXCEPT !.incident = Rule("PARK_OPENS_INCIDENT")]
         [] v.act = "abandon" -> Move(d, "abandoned", d.dir)

(* doubt.settle_undo *)
SettleUndo(d) ==
    IF Rule("COMPENSATION_IS_NEVER_GIVEN_UP") THEN Move(d, "retrying", "backward")
    ELSE Move(d, "compensated", "backward")

(* doubt.lose *)
Lose(d, a) ==
    LET closed == Closes(d, a) IN
    IF d.dir = "backward" THEN SettleUndo(closed)
    ELSE Settle([closed EXCEPT !.fails = @ + 1, !.doubt = TRUE,
                               !.keyAge = IF d.doubt THEN @ ELSE d.age], "none")

(* doubt.turn_back *)
TurnBack(d, reason) ==
    LET back == [d EXCEPT !.saga = "compensating", !.abort = reason,
                          !.next = IF @ = "done" THEN @ ELSE "skipped"]
        unsent == d.st \in Unsent /\ ~d.doubt
        open == d.st \in {"dispatched", "retrying", "unknown"}
    IN IF d.dir = "backward" THEN back
       ELSE IF unsent \/ (open /\ ~Rule("DOUBT_IS_SETTLED_FIRST")) THEN Move(back, "skipped", d.dir)
       ELSE IF open THEN Settle(back, "none")
       ELSE back

PastReturn(d) ==
    /\ Rule("PIVOT_IS_FINAL")
    /\ \/ agent.position = "after"
       \/ /\ agent.position = "pivot"
          /\ ~(d.st \in {"failed", "skipped"} \/ (d.st \in Unsent /\ ~d.doubt))

(* decide._advance: what follows from where the step stands, in the same commit *)
Label(d) ==
    IF d.st \in Live \/ d.next = "running"
    THEN [d EXCEPT !.saga = IF Aborting(d) THEN "compensating" ELSE "running"]
    ELSE [d EXCEPT !.saga = "halted"]

Backward(d) ==
    LET undone == IF d.st = "succeeded" /\ d.dir = "forward" /\ agent.comp THEN UndoRow(d) ELSE d
        unwound == undone.st \in Final \/ undone.st = "succeeded"
    IN IF unwound
       THEN [undone EXCEPT !.saga = IF d.abort = "cancelled" THEN "cancelled" ELSE "compensated"]
       ELSE Label(undone)

Forward(d) ==
    LET done == d.st \in {"succeeded", "abandoned"} IN
    IF done /\ d.next = "done" THEN [d EXCEPT !.saga = "completed"]
    ELSE IF done /\ d.next = "waiting" THEN
        IF d.late /\ ~PastReturn(d) THEN Backward(TurnBack(d, "deadline"))
        ELSE Label([d EXCEPT !.next = "running"])
    ELSE Label(d)

Advance(d) ==
    LET fatal == /\ ~Aborting(d) /\ ~ForwardOnly
                 /\ d.st = "failed" \/ (d.dir = "backward" /\ d.saga = "running")
        turned == IF fatal THEN TurnBack(d, "failed") ELSE d
    IN IF d.saga \in SagaFinal THEN d
       ELSE IF Aborting(turned) THEN Backward(turned) ELSE Forward(turned)

----------------------------------------------------------------------------
(* One transaction. Messages go out after it; without that rule they may go out although the      *)
(* transaction is then rolled back.                                                                *)

Spend == faults > 0 /\ faults' = faults - 1

Commit(new) == db' = new /\ UNCHANGED faults

CommitAtACost(new) == db' = new /\ Spend

PublishAndRollBack(new) ==
    /\ ~Rule("COMMIT_BEFORE_PUBLISH")
    /\ db' = [db EXCEPT !.msgs = new.msgs, !.qs = new.qs]
    /\ Spend

Written(new) == Commit(new) \/ PublishAndRollBack(new)

----------------------------------------------------------------------------
(* Workers: envelope.attempt, lease.grant, lease.report *)

Fits(m) == db.st = "dispatched" /\ (db.att + 1 = m.no \/ ~Rule("CHECK_ATTEMPT"))

KeyStillAlive ==
    \/ ~(agent.idempotent /\ db.doubt /\ db.dir = "forward")
    \/ ~Rule("GRANT_CHECKS_KEY")
    \/ KeyAlive(db)

Opened(op) == [pc |-> "granted", op |-> op, dir |-> db.dir, inc |-> db.inc, age |-> 0]
Granted(a) ==
    [db EXCEPT !.st = "leased", !.att = IF Rule("LEASE_RAISES_ATTEMPT") THEN a ELSE @, !.age = 0, !.asked = 0, !.sure = FALSE,
               !.wake = Rule("WAKE_ALWAYS_SET")]

(* The grant is one guarded update of the step row; it is the send marker. *)
Take(m) ==
    LET a == db.att + 1 IN
    /\ Rule("MARKER_IN_ROW") /\ m \in db.msgs /\ Fits(m) /\ KeyStillAlive
    /\ Commit(Granted(a))
    /\ proc' = [proc EXCEPT ![a] = Opened(m.op)]
    /\ UNCHANGED <<net, remote, execs, answers, seen, found>>

(* The marker in a table of its own: the worker reads the row, and writes some time later. *)
Read(m) ==
    /\ ~Rule("MARKER_IN_ROW") /\ m \in db.msgs /\ Fits(m) /\ m \notin seen
    /\ seen' = seen \cup {m}
    /\ UNCHANGED <<db, proc, net, remote, execs, answers, found, faults>>

Mark(m) ==
    /\ m \in seen /\ proc[m.no].pc = "idle"
    /\ Commit(IF Fits(m) THEN Granted(m.no) ELSE db)
    /\ proc' = [proc EXCEPT ![m.no] = Opened(m.op)]
    /\ UNCHANGED <<net, remote, execs, answers, seen, found>>

Overslept(a) == IF Stamped /\ proc[a].age > Timeout THEN proc[a].age - Timeout ELSE 0

Request(op, dir, inc, a) ==
    [op |-> op, inc |-> inc, a |-> a, age |-> Overslept(a),
     key |-> IF op = "action" /\ dir = "backward" THEN StrayKey ELSE KeyOf(inc, a)]

Send(a) ==
    /\ proc[a].pc = "granted"
    /\ net' = net \cup {Request(proc[a].op, proc[a].dir, proc[a].inc, a)}
    /\ proc' = [proc EXCEPT ![a].pc = "sent"]
    /\ UNCHANGED <<db, remote, execs, answers, seen, found, faults>>

SendUnmarked(m) ==
    /\ ~Rule("MARKER_BEFORE_SEND") /\ m \in db.msgs /\ Fits(m)
    /\ net' = net \cup {Request(m.op, db.dir, db.inc, m.no)}
    /\ UNCHANGED <<db, proc, remote, execs, answers, seen, found, faults>>

(* A report is accepted from the attempt that holds the lease: decide._reported. *)
Holds(a) ==
    /\ db.att = a \/ ~Rule("CHECK_ATTEMPT")
    /\ db.st = "leased" \/ ~Rule("CHECK_STATE")

Outcome(a) ==
    CASE proc[a].pc = "ok" ->
            Closes(Move(db, IF db.dir = "backward" THEN "compensated" ELSE "succeeded", db.dir), a)
      [] proc[a].pc = "no" ->
            IF db.dir = "backward" THEN SettleUndo(Closes(db, a))
            ELSE Settle([Closes(db, a) EXCEPT !.fails = MaxAttempts,
                                              !.doubt = @ /\ Rule("DOUBT_OUTLIVES_A_NO")], "none")
      [] proc[a].pc = "unknown" -> Lose(db, a)

(* late.report: refused, and kept as evidence. *)
Orphan(inc) ==
    \/ db.st \in {"failed", "skipped"}
    \/ db.st = "abandoned" /\ db.dir = "forward" /\ Aborting(db)
    \/ db.st = "compensated" /\ ~agent.barrier
    \/ inc < db.inc

UndoLate(d, inc) ==
    IF ~agent.comp \/ d.watch \notin {"none", "watching"} \/ ~Rule("LATE_WATCH") THEN d
    ELSE [d EXCEPT !.watch = "undoing", !.watched = inc]

Evidence(a) ==
    LET p == proc[a]
        same == (db.dir = p.dir /\ db.inc = p.inc) \/ ~Rule("EVIDENCE_IS_OF_THIS_OPERATION")
    IN IF p.pc /= "ok" THEN db
       ELSE IF same /\ db.st \in Open
       THEN Move(db, IF db.dir = "backward" THEN "compensated" ELSE "succeeded", db.dir)
       ELSE IF p.dir = "forward" /\ Orphan(p.inc) THEN UndoLate(db, p.inc)
       ELSE db

Report(a) ==
    /\ proc[a].pc \in {"ok", "no", "unknown"}
    /\ LET after == IF Holds(a) THEN Outcome(a) ELSE Evidence(a)
           whole == Rule("OUTCOME_AND_NEXT_IN_ONE_COMMIT") \/ ~Holds(a) \/ proc[a].pc /= "ok"
       IN /\ Written(IF whole THEN Advance(after) ELSE after)
          /\ proc' = [proc EXCEPT ![a] = IF whole THEN Gone ELSE [Gone EXCEPT !.pc = "next"]]
    /\ UNCHANGED <<net, remote, execs, answers, seen, found>>

StartNext(a) ==
    /\ proc[a].pc = "next"
    /\ Commit(Advance(db))
    /\ proc' = [proc EXCEPT ![a] = Gone]
    /\ UNCHANGED <<net, remote, execs, answers, seen, found>>

----------------------------------------------------------------------------
(* The remote service *)

Key(k, st, eff) == [remote EXCEPT ![k] = [st |-> st, eff |-> eff, age |-> 0]]

Execute(r) ==
    LET k == remote[r.key] IN
    IF k.st \in {"closed", "rejected"} \/ (agent.idempotent /\ k.st \in {"done", "undone"})
    THEN UNCHANGED <<remote, execs>>
    ELSE /\ remote' = Key(r.key, "done", k.eff + 1)
         /\ execs' = [execs EXCEPT ![r.inc] = @ + 1]

Compensate(r) ==
    LET k == remote[r.key]
        st == IF agent.barrier THEN "closed" ELSE IF k.st = "done" THEN "undone" ELSE k.st
    IN /\ remote' = [remote EXCEPT ![r.key] = [st |-> st, eff |-> 0, age |-> k.age]]
       /\ UNCHANGED execs

Says(r) ==
    IF r.op = "action" /\ remote[r.key].st \in {"closed", "rejected"} THEN "no" ELSE "ok"

(* The process that still waits gets the reply, or the reply is lost. *)
Reply(a, word) ==
    IF proc[a].pc /= "sent" THEN UNCHANGED <<proc, faults>>
    ELSE \/ proc' = [proc EXCEPT ![a].pc = word] /\ UNCHANGED faults
         \/ proc' = [proc EXCEPT ![a].pc = "unknown"] /\ Spend

Ages(r) == NetworkBounded /\ r.op = "action"

(* A request arrives, at any time and in any order; where the remote collapses it, even again. *)
Arrive(r) ==
    /\ r \in net /\ (Ages(r) => r.age <= RequestLife)
    /\ IF r.op = "action" THEN Execute(r) ELSE Compensate(r)
    /\ Reply(r.a, Says(r))
    /\ net' = IF r.op = "action" /\ ~agent.idempotent THEN net \ {r} ELSE net
    /\ UNCHANGED <<db, answers, seen, found>>

(* What can only be repeated is repeated slowly and without end when its key was refused. *)
Learnable == agent.position /= "after" /\ (agent.probe \/ agent.close \/ agent.barrier)

(* A definite no: for this request only, or for its key from now on. *)
Refuse(r) ==
    /\ r \in net /\ r.op = "action" /\ proc[r.a].pc = "sent" /\ Spend
    /\ \/ "request" \in Noes /\ UNCHANGED remote
       \/ "key" \in Noes /\ Learnable /\ remote[r.key].st = "fresh" /\ remote' = Key(r.key, "rejected", 0)
    /\ proc' = [proc EXCEPT ![r.a].pc = "no"]
    /\ net' = net \ {r}
    /\ UNCHANGED <<db, execs, answers, seen, found>>

----------------------------------------------------------------------------
(* Probes and closes: envelope.inquire, decide._answered *)

Asked(q) == KeyOf(q.inc, q.att)

(* A probe asks by the key, and finds nothing any more once that is forgotten. *)
Truth(q) ==
    LET k == remote[Asked(q)] IN
    IF k.eff > 0 /\ (k.st /= "fresh" \/ q.op = "close") THEN "applied"
    ELSE CASE k.st \in {"closed", "undone"} -> "closed"
           [] k.st = "rejected" -> "rejected"
           [] OTHER -> "absent"

Hidden(q) == Timed /\ remote[Asked(q)].eff > 0 /\ remote[Asked(q)].age < Staleness

(* Answered at any time, and any number of times: the process that asks may have slept. *)
Look(q) ==
    /\ q \in db.qs /\ q.op = "probe"
    /\ \/ ~Hidden(q) /\ answers' = answers \cup {[no |-> q.no, says |-> Truth(q)]} /\ UNCHANGED faults
       \/ Hidden(q) /\ answers' = answers \cup {[no |-> q.no, says |-> "absent"]} /\ UNCHANGED faults
       \/ ~Timed /\ answers' = answers \cup {[no |-> q.no, says |-> "absent"]} /\ Spend
    /\ UNCHANGED <<db, proc, net, remote, execs, seen, found>>

Shut(q) ==
    /\ q \in db.qs /\ q.op = "close"
    /\ LET says == IF Truth(q) = "absent" THEN "closed" ELSE Truth(q)
       IN /\ answers' = answers \cup {[no |-> q.no, says |-> says]}
          /\ remote' = IF says = "closed" THEN [remote EXCEPT ![Asked(q)].st = "closed"] ELSE remote
    /\ UNCHANGED <<db, proc, net, execs, seen, found, faults>>

Answer(n) ==
    /\ n \in answers
    /\ db.st = "unknown" \/ ~Rule("CHECK_STATE")
    /\ db.no = n.no \/ ~Rule("ANSWERS_ARE_NUMBERED")
    /\ Written(Advance(Settle(db, n.says)))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

----------------------------------------------------------------------------
(* Supervisors: supervisor.py, decide._woken, decide._lost *)

Due == ~Timed \/ db.age >= Timeout

(* The holder is gone (the keeper saw it, or its node is silent), or it sleeps: a fault. *)
Overdue(a) == db.st = "leased" /\ db.att = a /\ (Alive(a) => Due)
Asleep(a) == ~Timed /\ Alive(a)   \* in a timed model the tick that it slept through has cost it

Expire ==
    /\ Overdue(db.att) /\ db.wake
    /\ LET new == Advance(Lose(db, db.att))
       IN IF Asleep(db.att) THEN CommitAtACost(new) ELSE Written(new)
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

Find(s) ==
    /\ found[s] = 0 /\ Overdue(db.att) /\ db.wake
    /\ IF Asleep(db.att) THEN Spend ELSE UNCHANGED faults
    /\ found' = [found EXCEPT ![s] = db.att]
    /\ UNCHANGED <<db, proc, net, remote, execs, answers, seen>>

ActOn(s) ==
    /\ found[s] /= 0
    /\ LET still == /\ db.st = "leased" \/ ~Rule("CHECK_STATE")
                    /\ db.att = found[s] \/ ~Rule("CHECK_ATTEMPT")
       IN Written(IF still THEN Advance(Lose(db, found[s])) ELSE db)
    /\ found' = [found EXCEPT ![s] = 0]
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen>>

KeyForgotten(d) ==
    d.dir = "forward" /\ d.doubt /\ agent.idempotent /\ ~KeyAlive(d)

Redeliver ==
    /\ db.st = "dispatched" /\ db.wake
    /\ LET m == [op |-> Op(db.dir), no |-> db.att + 1]
       IN Written(IF KeyForgotten(db) /\ Rule("GRANT_CHECKS_KEY") THEN Advance(Settle(db, "none"))
                  ELSE [db EXCEPT !.msgs = @ \cup {m}])
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

RetryDue ==
    /\ db.st = "retrying" /\ db.wake
    /\ Written(IF KeyForgotten(db) THEN Advance(Settle(db, "none"))
               ELSE IF db.dir = "forward" /\ db.late /\ ~Aborting(db) /\ ~PastReturn(db)
               THEN Advance(TurnBack(db, "deadline"))
               ELSE Dispatch(db, db.dir))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

(* A pause between two questions is over. *)
AskAgain ==
    /\ db.st = "unknown" /\ db.wake /\ db.inq = "none"
    /\ db.hold => db.age >= Horizon
    /\ Written(Advance(Settle(db, "none")))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

(* A question was not answered in time: a fault. *)
Unanswered ==
    /\ db.st = "unknown" /\ db.wake /\ db.inq /= "none"
    /\ CommitAtACost(Advance(Settle(db, "unclear")))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

DeadlineSweep ==
    /\ db.late /\ ~Aborting(db) /\ db.saga \notin SagaFinal /\ ~PastReturn(db)
    /\ Written(Advance(TurnBack(db, "deadline")))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

(* The row that looks out for a late effect, and undoes it: late.watch, late.undo_late. *)
WatchSees ==
    /\ db.watch = "watching" /\ remote[db.watched].eff > 0
    /\ ~(Timed /\ remote[db.watched].age < Staleness)
    /\ db' = [db EXCEPT !.watch = IF agent.comp THEN "undoing" ELSE "seen"]
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found, faults>>

WatchUndoes ==
    /\ db.watch = "undoing"
    /\ remote' = [remote EXCEPT ![db.watched].eff = 0, ![db.watched].st = IF @ = "done" THEN "undone" ELSE @]
    /\ db' = [db EXCEPT !.watch = "undone"]
    /\ UNCHANGED <<proc, net, execs, answers, seen, found, faults>>

----------------------------------------------------------------------------
(* The rest of the saga, people, time *)

NextEnds ==
    /\ db.next = "running" /\ db.saga = "running"
    /\ \/ Written(Advance([db EXCEPT !.next = "done"]))
       \/ agent.position = "before" /\ Written(Advance(TurnBack(db, "failed")))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

Cancel ==
    /\ MayCancel /\ db.saga \notin SagaFinal /\ ~Aborting(db) /\ ~PastReturn(db)
    /\ Written(Advance(TurnBack(db, "cancelled")))
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

BecomeLate ==
    /\ MayBeLate /\ ~db.late /\ db.saga \notin SagaFinal
    /\ db' = [db EXCEPT !.late = TRUE]
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found, faults>>

(* A process that has not sent by the end of its grace is killed, unless the machine is paused. *)
MayTick ==
    \A a \in Attempts : proc[a].pc = "granted" /\ ~MayPause => proc[a].age < Timeout + Grace

(* To sleep through the end of one's lease is a fault. *)
Oversleeps ==
    db.st = "leased" /\ Alive(db.att) /\ db.age < Timeout /\ db.age + 1 >= Timeout

AgeCap == IF Stamped THEN Timeout + RequestLife + 1 ELSE Timeout + Grace
RowCap == IF Retention > FullHorizon THEN Retention ELSE FullHorizon
KeyCap == IF Retention > Staleness THEN Retention ELSE Staleness

TickKey(k) ==
    IF k.eff = 0 /\ k.st /= "done" THEN k
    ELSE LET age == Older(k.age, KeyCap) IN
         [k EXCEPT !.age = age,
                   !.st = IF Retention > 0 /\ age >= Retention /\ @ = "done" THEN "fresh" ELSE @]

Tick ==
    /\ Timed /\ MayTick
    /\ db' = [db EXCEPT !.age = IF db.att = 0 THEN 0 ELSE Older(@, RowCap),
                        !.keyAge = IF db.doubt THEN Older(@, Retention) ELSE 0]
    /\ proc' = [a \in Attempts |->
                  IF proc[a].pc = "granted" /\ proc[a].op = "action" THEN [proc[a] EXCEPT !.age = Older(@, AgeCap)]
                  ELSE proc[a]]
    /\ net' = {IF Ages(r) THEN [r EXCEPT !.age = @ + 1] ELSE r :
                 r \in {q \in net : Ages(q) => q.age < RequestLife}}
    /\ remote' = [k \in Keys |-> TickKey(remote[k])]
    /\ IF Oversleeps THEN Spend ELSE UNCHANGED faults
    /\ UNCHANGED <<execs, answers, seen, found>>

----------------------------------------------------------------------------
(* Faults *)

Crash(a) ==
    /\ Alive(a) /\ Spend
    /\ proc' = [proc EXCEPT ![a] = Gone]
    /\ UNCHANGED <<db, net, remote, execs, answers, seen, found>>

LoseMessage ==
    /\ LET m == [op |-> Op(db.dir), no |-> db.att + 1]
       IN /\ db.st = "dispatched" /\ m \in db.msgs
          /\ db' = [db EXCEPT !.msgs = @ \ {m}]
    /\ Spend
    /\ UNCHANGED <<proc, net, remote, execs, answers, seen, found>>

GiveUpWaiting(a) ==
    /\ proc[a].pc = "sent" /\ Spend
    /\ proc' = [proc EXCEPT ![a].pc = "unknown"]
    /\ UNCHANGED <<db, net, remote, execs, answers, seen, found>>

----------------------------------------------------------------------------
Progress ==
    \/ \E m \in db.msgs : Take(m) \/ Read(m)
    \/ \E m \in seen : Mark(m)
    \/ \E a \in Attempts : Send(a) \/ Report(a) \/ StartNext(a)
    \/ \E r \in net : Arrive(r)
    \/ \E q \in db.qs : Look(q) \/ Shut(q)
    \/ \E n \in answers : Answer(n)
    \/ \E s \in Supervisors : ActOn(s)
    \/ Expire \/ Redeliver \/ RetryDue \/ AskAgain \/ DeadlineSweep
    \/ WatchSees \/ WatchUndoes \/ NextEnds \/ Tick

Trouble ==
    \/ \E m \in db.msgs : SendUnmarked(m)
    \/ \E a \in Attempts : Crash(a) \/ GiveUpWaiting(a)
    \/ \E r \in net : Refuse(r)
    \/ \E s \in Supervisors : Find(s)
    \/ LoseMessage \/ Unanswered \/ Cancel \/ BecomeLate

Next == (Progress \/ Trouble) /\ UNCHANGED agent

Spec == Init /\ [][Next]_vars /\ WF_vars(Progress /\ UNCHANGED agent)

----------------------------------------------------------------------------
(* What must hold *)

RECURSIVE Sum(_)
Sum(keys) ==
    IF keys = {} THEN 0
    ELSE LET k == CHOOSE k \in keys : TRUE IN remote[k].eff + Sum(keys \ {k})
NetEffect == Sum(Keys)
TurnedBack == db.saga \in {"compensated", "cancelled"} /\ db.st /= "abandoned"

InBounds == db.att < Faults + 4 /\ db.inc < StrayKey /\ db.no < 4 * (Faults + 2)

OneExecution == \A i \in Keys : execs[i] <= 1
CompletedOnce == db.saga = "completed" /\ db.st /= "abandoned" => NetEffect = 1
NetZero == TurnedBack => NetEffect = 0
NetZeroOrWatched == TurnedBack /\ NetEffect > 0 => db.watch \in {"watching", "undoing"}
OneOutcome == ~db.twice
MarkerFirst == \A r \in net : proc[r.a].pc /= "idle"
NothingForgotten ==
    /\ db.st \in Live => db.wake
    /\ db.saga \in {"running", "compensating"} => db.st \in Live \/ db.next = "running"
HaltedIsTold == db.saga = "halted" => db.incident

AttemptsGrow == [][db'.att >= db.att /\ (db'.st = "leased" /\ db.st /= "leased" => db'.att > db.att)]_vars
FinalStays == [][/\ (db.st \in Final => db'.st = db.st)
                 /\ (db.saga \in SagaFinal => db'.saga = db.saga /\ db'.st = db.st)]_vars

Ends == <>[](db.saga \in SagaFinal \/ (db.saga = "halted" /\ db.incident))
NetZeroAtLast == <>[](TurnedBack => NetEffect = 0)
============================================================================
