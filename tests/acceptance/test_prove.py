"""`atalaia prove` as a user has it: the reference workflow passes, and what is wrong is found.

Each module in `tests/support/wrong` is a small installation of its own, wrong in one way that its
first line tells.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.commands import Forks, forks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forking() -> Iterator[Forks]:
    with forks() as process:
        yield process


@dataclass
class Prove:
    """Runs the command in an installation."""

    forks: Forks
    folder: Path

    def run(self, name: str, *options: str, module: str = "") -> CompletedProcess[str]:
        module = f"tests.support.wrong.{module or name}"
        own = {} if name == "trip" else {"ATALAIA_AGENTS": module, "ATALAIA_WORKFLOWS": module}
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ATALAIA_")}
        env = ours | {"PYTHONPATH": str(ROOT)} | own
        with tempfile.TemporaryDirectory() as spool:
            return self.forks.run(
                ["prove", name, *options], self.folder, env, "", Path(spool)
            )  # fmt: skip

    def own(self, name: str, *options: str) -> CompletedProcess[str]:
        """Run the installation's own agents against its own partner."""
        return self.run(name, "--partner", f"tests.support.wrong.{name}:shop", *options)

    def refuse(self, name: str, *options: str, module: str = "") -> str:
        done = self.run(name, *options, module=module)
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        return line.removeprefix("atalaia: ")


@pytest.fixture
def prove(forking: Forks, tmp_path: Path) -> Prove:
    return Prove(forking, tmp_path)


def last_line(done: CompletedProcess[str]) -> str:
    return done.stdout.rstrip().splitlines()[-1].strip()


# --- what is right -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_trip_ends_well_whatever_crashes(prove: Prove) -> None:
    done = prove.run("trip")
    assert (done.returncode, done.stderr) == (0, "")
    assert "proving trip version 1: 5 steps, partners of the model" in done.stdout
    assert "with one crash" in done.stdout
    assert "with two crashes" in done.stdout
    assert "160 sagas in storms" in done.stdout
    assert "every one ended well" in done.stdout
    runs = int(last_line(done).split()[2])
    assert runs > 1000
    assert last_line(done) == f"prove: trip: {runs} runs, 0 findings"
    assert not list(prove.folder.iterdir()), "it writes nothing"


def test_what_was_tried_is_told_as_a_document(prove: Prove) -> None:
    done = prove.run("trip", "--quick", "--seeds", "2", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert told["runs"] == sum(told["schedules"].values()) + told["sagas_in_storms"]
    del told["schedules"], told["runs"]
    assert told == {
        "workflow": "trip", "version": 1, "partner": "model", "sagas_in_storms": 16,
        "waiting_for_a_person": 0, "findings": [],
    }  # fmt: skip


def test_what_is_kept_is_not_blamed_however_it_is_settled(prove: Prove) -> None:
    done = prove.own("kept", "--quick", "--seeds", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert last_line(done).endswith(" runs, 0 findings")


def test_agents_and_a_partner_that_keep_their_word_pass(prove: Prove) -> None:
    done = prove.own("right")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 steps, your agents and your partner" in done.stdout
    assert "no reply was lost" not in done.stdout
    assert last_line(done).startswith("prove: right: ")
    assert last_line(done).endswith(" runs, 0 findings")


def test_a_partner_that_does_not_say_when_it_is_called_is_told_what_was_not_tried(
    prove: Prove,
) -> None:
    done = prove.own("silent", "--quick", "--seeds", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no reply was lost and no request was late" in done.stdout


# --- what is declared and not safe ---------------------------------------------------------------

REFUSED = [
    (
        "nothing_declared", "order", "the process dies after the partner has acted",
        "nothing that could settle a doubt", "give it a close", "waits for a person",
    ),
    (
        "never_undone", "order", "the partner refuses", "cannot be undone",
        "give it a compensation",
        "the saga is compensated, and the effect of step 'order' still stands",
    ),
    (
        "after_the_pivot", "letter", "the process dies after the partner has acted",
        "must be repeated until it succeeds", "declare it idempotent=True", "waits for a person",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "step", "crash", "why", "remedy", "effect"), REFUSED, ids=[r[0] for r in REFUSED]
)
def test_what_is_refused_is_shown_to_go_wrong(
    prove: Prove, name: str, step: str, crash: str, why: str, remedy: str, effect: str
) -> None:
    found = only_finding(prove.run(name, "--json"))
    assert (found["kind"], found["step"]) == ("refused", step)
    assert crash in found["crash"][-1]
    assert why in found["explanation"]
    assert remedy in found["remedy"]
    assert effect in found["effect"]
    assert found["timeline"]


def test_a_rule_is_told_where_no_run_shows_what_it_is_good_for(prove: Prove) -> None:
    found = only_finding(prove.run("tried_too_long", "--json", "--quick", "--seeds", "0"))
    assert (found["kind"], found["step"]) == ("refused", "order")
    assert "remembers a key for only 0:20:00" in found["explanation"]
    assert "lower retry.max_attempts" in found["remedy"]
    assert (found["crash"], found["timeline"]) == ([], [])


# --- what is declared and not kept ---------------------------------------------------------------

NOT_KEPT = [
    ("ignores_keys", "doubled", "acted again for the same key", "act once for one key"),
    ("forgets_keys", "doubled", "key_retention=24 h", "a key_retention below"),
    ("own_keys", "doubled", "a key of its own making", "send call.key"),
    ("two_in_one", "doubled", "one call of agent 'shop.order' made 2 effects", "a step of its own"),
    ("closes_in_vain", "doubled", "answered Closed", "refuses the key from then on"),
    ("looks_in_the_wrong_place", "orphaned", "answered Absent", "probe(staleness="),
    ("takes_time_outs_for_refusals", "orphaned", "raised PermanentFailure", "raise OutcomeUnknown"),
    ("undoes_by_reference", "orphaned", "and the effect still stands", "undo by call.action_key"),
    ("open_after_undo", "orphaned", "closes_key=True", "also close the key at the partner"),
    ("refunds_twice", "undone twice", "undid one effect 2 times", "undo once"),
    ("nothing_to_undo", "stuck", "no such order, with nothing left to undo", "without an error"),
    ("says_it_has_no_effect", "undeclared", "effect=False", "leave effect=False out"),
    ("returns_something_else", "fails", "does not fit the result", "what its annotation says"),
]


@pytest.mark.proves("D-30")
@pytest.mark.parametrize(
    ("name", "kind", "why", "remedy"), NOT_KEPT, ids=[case[0] for case in NOT_KEPT]
)
def test_what_is_declared_and_not_kept_is_found_and_explained(
    prove: Prove, name: str, kind: str, why: str, remedy: str
) -> None:
    done = prove.own(name, "--json")
    found = next(one for one in findings(done) if one["kind"] == kind)
    assert found["step"] == "order"
    assert why in found["explanation"]
    assert remedy in found["remedy"]
    said = [entry["text"] for entry in found["timeline"] if entry["verb"] == "agent"]
    assert said, "the timeline tells what the agent said"
    faults = [entry for entry in found["timeline"] if entry["verb"] == "fault"]
    assert bool(faults) == bool(found["crash"]), "and what befell it, if anything had to"


def findings(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    assert (done.returncode, done.stderr) == (1, ""), done
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    keys = {"kind", "step", "effect", "crash", "explanation", "remedy", "timeline"}
    assert [set(one) for one in found] == [keys] * len(found)
    return found


def only_finding(done: CompletedProcess[str]) -> dict[str, Any]:
    (found,) = findings(done)
    return found


def test_a_finding_is_told_with_the_timeline_of_its_run(prove: Prove) -> None:
    done = prove.own("undoes_by_reference")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "finding 1: the effect of step 'order' is left behind" in lines
    assert (
        "when the action of step 'order': the process dies after the partner has acted and before "
        "the reply is read"
    ) in lines
    assert "then the saga is compensated, and the effect of step 'order' still stands" in lines
    assert (
        "why the compensation of agent 'shop.order' returned, and the effect still stands" in lines
    )
    story = [line for line in lines if line.startswith("00:")]
    words = ["grant action", "partner acted under key", "fault", "agent compensation returned None"]
    places = [next(n for n, line in enumerate(story) if word in line) for word in words]
    assert places == sorted(places)
    assert last_line(done).endswith(" runs, 1 finding")


def test_the_storm_of_one_seed_can_be_repeated(prove: Prove) -> None:
    first, second = (prove.run("trip", "--quick", "--seed", "7", "--json") for _ in range(2))
    assert json.loads(first.stdout)["sagas_in_storms"] == 8
    assert first.stdout == second.stdout


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--partner", "nowhere"), "--partner must be module:object, got 'nowhere'"),
        (("--partner", "nowhere:shop"), "--partner: 'nowhere' cannot be imported"),
        (
            ("--partner", "tests.support.wrong.right:till"),
            "--partner: 'tests.support.wrong.right' has no 'till'",
        ),
        (
            ("--partner", "tests.support.wrong.right:workflow"),
            "has no reset and no effects(); see docs/prove.md",
        ),
        (("--partner", "tests.support.wrong.shop:Shop"), "is a class, not an object"),
        (("--input", "{}"), "--input goes with --partner:"),
        (
            ("--partner", "tests.support.wrong.right:shop", "--input", "{"),
            "--input is not JSON",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused_in_one_line(
    prove: Prove, options: tuple[str, ...], line: str
) -> None:
    assert line in prove.refuse("right", *options)


def test_an_unknown_workflow_is_refused_with_the_nearest_name(prove: Prove) -> None:
    refused = prove.refuse("rigth", module="right")
    assert refused == "workflow 'rigth' is not known; did you mean 'right'?"


def test_an_input_that_does_not_fit_is_refused(prove: Prove) -> None:
    refused = prove.refuse("trip", "--partner", "tests.support.wrong.right:shop", "--input", "{}")
    assert refused.startswith("input of workflow 'trip': traveller: Field required")
