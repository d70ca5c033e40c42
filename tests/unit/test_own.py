import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.errors import ConfigurationError
from tasks.proof.own import OwnBooks, World, load_fake
from tasks.proof.strand import Strand
from tasks.proof.world import EPOCH

DOCUMENT = Path(__file__).parents[2] / "docs" / "prove.md"


class Place:
    """As much of a simulated world as a partner sees."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.reached: list[str] = []

    def reach(self, point: str) -> None:
        self.reached.append(point)


@pytest.fixture
def place() -> Any:
    return Place()


class Fake:
    """Books that a test writes itself."""

    def __init__(self, *lines: Any) -> None:
        self.lines = list(lines)

    def reset(self, world: World) -> None:
        self.world = world

    def effects(self) -> Iterator[Any]:
        return iter(self.lines)


# --- the wire ------------------------------------------------------------------------------------


def test_a_request_goes_through_to_where_its_reply_can_be_lost(place: Any) -> None:
    world = World(place)
    with world.request():
        assert place.reached == []
    assert place.reached == ["p6"]


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_a_lost_request_does_not_reach_the_partner(place: Any, fault: str) -> None:
    world, done = World(place), []
    world.fault = fault
    with pytest.raises(TimeoutError, match="timed out"), world.request():
        done.append("it was acted on")
    assert done == []


def test_a_lost_reply_is_lost_after_the_partner_has_acted(place: Any) -> None:
    world, done = World(place), []
    world.fault = "reply-lost"
    with pytest.raises(LookupError), world.request(lost=LookupError("as the client says it")):
        done.append("it was acted on")
    assert done == ["it was acted on"]


def test_a_fault_befalls_one_request(place: Any) -> None:
    world = World(place)
    world.fault = "lost"
    with pytest.raises(TimeoutError), world.request():
        pass
    with world.request():
        pass


def test_a_late_request_waits_on_the_wire_until_it_is_delivered(place: Any) -> None:
    world, done = World(place), []

    def send() -> None:
        done.append("sent")
        with world.request():
            done.append("arrived")

    world.courier = courier = Strand(send)
    assert not courier.resume()
    assert done == ["sent"]
    assert courier.resume()
    assert done == ["sent", "arrived"]


# --- the books -----------------------------------------------------------------------------------


def test_the_books_tell_what_was_made_and_undone_since_they_were_last_read(place: Any) -> None:
    fake = Fake()
    books = OwnBooks(fake, place, tells=True)
    fake.lines.append(("key", "saga", "step", False))
    (made,), undone = books.read()
    assert (made.key, made.saga_id, made.step, made.at, made.undone_at) == (
        "key", "saga", "step", EPOCH, None,
    )  # fmt: skip
    assert undone == []
    fake.lines[0] = ("key", "saga", "step", True)
    assert books.read() == ([], [made])
    assert made.undone_at == EPOCH
    assert books.read() == ([], [])


def test_an_effect_that_is_undone_again_is_counted(place: Any) -> None:
    books = OwnBooks(
        Fake(("key", "saga", "step", 2), ("other", "saga", "step", 1)), place, tells=True
    )
    books.read()
    assert [(effect.key, times) for effect, times in books.often_undone()] == [("key", 2)]


@pytest.mark.parametrize("line", ["key", ("key", "saga"), ("key", "saga", "step", "no")])
def test_a_line_that_cannot_be_read_is_shown(place: Any, line: Any) -> None:
    books = OwnBooks(Fake(line), place, tells=True)
    with pytest.raises(ConfigurationError, match=re.escape(repr(line))):
        books.read()


def test_books_from_which_a_line_was_taken_out_are_refused(place: Any) -> None:
    fake = Fake(("key", "saga", "step", 0))
    books = OwnBooks(fake, place, tells=True)
    books.read()
    fake.lines.clear()
    with pytest.raises(ConfigurationError, match="must keep what was undone"):
        books.read()


def test_a_fake_that_breaks_is_told_as_such(place: Any) -> None:
    class Broken(Fake):
        def effects(self) -> Iterator[Any]:
            raise LookupError("no books")

    with pytest.raises(ConfigurationError, match=r"effects\(\) raised LookupError: no books"):
        OwnBooks(Broken(), place, tells=True).read()


# --- finding it ----------------------------------------------------------------------------------


def test_a_fake_is_found_by_its_module_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "somewhere", SimpleNamespace(shop=fake))
    assert load_fake("somewhere:shop") is fake


@pytest.mark.parametrize("text", ["", "shop", "somewhere:", ":shop"])
def test_what_names_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be module:object"):
        load_fake(text)


# --- the document --------------------------------------------------------------------------------


@dataclass
class Order:
    key: str
    saga_id: str
    step: str
    undone: int


def test_the_partner_in_the_document_is_one(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"(?ms)^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"Order": Order}
    exec(compile(source, "prove.md", "exec"), names)
    monkeypatch.setitem(sys.modules, "documented", SimpleNamespace(**names))
    shop: Any = load_fake("documented:shop")
    books = OwnBooks(shop, place, tells=False)
    for _ in range(2):
        shop.order("key", "saga", "step")
    made, undone = books.read()
    assert ([effect.key for effect in made], undone) == (["key"], [])
    assert books.world.tells
