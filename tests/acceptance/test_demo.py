"""The demo as a newcomer runs it, only with fewer trips."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples.travel import demo as module
from examples.travel.books import Books
from examples.travel.ledger import Ledger
from examples.travel.wire import SERVICES, Service
from orchestration.database import open_engine
from orchestration.store import Store
from tests.support.records import assert_all_hold
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
TRIPS = 12
ENDS_WITHIN = 110
LAST_LINE = re.compile(
    rf"demo: {TRIPS} sagas, (\d+) completed, (\d+) compensated, 0 orphaned effects, "
    r"0 duplicated effects, (\d+) rescued by the supervisor"
)

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(180)]


class Demo:
    """One demo, whose processes are all known by the folder that they inherit."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        command = [sys.executable, "-m", "examples.travel.demo", "--trips", str(TRIPS), *flags]
        environment = os.environ | {"TMPDIR": str(folder)}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=err
            )

    @property
    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def end(self) -> int:
        status = self.process.wait(ENDS_WITHIN)
        assert [process.cmdline() for process in self.family()] == []
        return status

    def family(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter(["environ"]):
            inherited = process.info["environ"] or {}
            if inherited.get("TMPDIR") == str(self.folder):
                yield process

    def last_line(self) -> str:
        return self.out.read_text().splitlines()[-1]


def test_the_demo_ends_with_books_that_agree(tmp_path: Path) -> None:
    home = tmp_path / "home"
    demo = Demo(tmp_path, "--home", str(home))
    assert demo.end() == 0, demo.said
    found = LAST_LINE.fullmatch(demo.last_line())
    assert found, demo.said
    completed, compensated, rescued = map(int, found.groups())
    assert completed + compensated == TRIPS
    assert completed
    assert compensated >= 3  # no room, no car, no money
    assert rescued
    assert demo.out.read_text().count("  killed ") == 4
    engine = open_engine(f"sqlite:///{home / 'atalaia.db'}")
    assert_all_hold(Store(engine), [books_of(home, service) for service in SERVICES.values()])
    engine.dispose()


def books_of(home: Path, service: Service) -> Books:
    """Read the books that a partner has left behind."""
    ledger = Ledger(home / "partners" / f"{service.name}.sqlite3", service, {})
    books = ledger.books()
    ledger.close_file()
    return books


def test_the_demo_fails_when_a_partners_book_is_tampered_with(tmp_path: Path) -> None:
    home = tmp_path / "home"
    demo = Demo(tmp_path, "--json", "--home", str(home))
    book = home / "partners" / "hotels.sqlite3"
    eventually(
        lambda: "submitted" in demo.said, within=60, describe=lambda: f"started: {demo.said}"
    )
    with sqlite3.connect(book, timeout=30) as connection:
        connection.execute(
            "INSERT INTO effects (id, key, reference, saga, step, request, created_at)"
            " SELECT 9999, 'nobody', 'HO-009999', 'nobody', 'hotel', request, created_at"
            " FROM effects LIMIT 1"
        )
    connection.close()
    assert demo.end() == 1, demo.said
    figures = json.loads(demo.last_line())
    assert figures["orphaned_effects"] == 1
    assert figures["good"] is False
    assert "orphaned effect at hotels: saga nobody" in demo.said
    assert (home / "logs" / "worker1.log").exists()


def test_ctrl_c_stops_the_demo_and_everything_it_started(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    eventually(
        lambda: "everything is up" in demo.said, within=60, describe=lambda: f"up: {demo.said}"
    )
    assert len(list(demo.family())) > 10
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130, demo.said
    assert "Traceback" not in demo.said
    assert list(tmp_path.glob("atalaia-demo-*")) == []


@pytest.mark.parametrize("flags", [("--trips", "0"), ("--trips", "many"), ("--home", str(ROOT))])
def test_bad_input_gets_one_line_and_starts_nothing(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        module.main(flags)
    assert refused.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err.splitlines()[-1]
