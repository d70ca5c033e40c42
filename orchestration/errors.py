"""Every error that a user of Atalaia can meet. Each states the fact, and what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


class AtalaiaError(Exception):
    """The base of them all: its text is one clear sentence for the person who caused it."""


class DefinitionError(AtalaiaError):
    """A workflow or an agent is declared in a way that could lose or double an effect."""


class DefinitionChangedError(AtalaiaError):
    """A workflow has other content than what is stored under the same name and version."""

    def __init__(self, workflow: str, version: int, diff: str) -> None:
        super().__init__(
            f"workflow {workflow!r} version {version} is stored with other content; running sagas "
            f"keep what they were started with, so give the new content a new version:\n{diff}"
        )


class UnknownNameError(AtalaiaError):
    """A name that nothing is registered under; the message offers the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names) or 'none'}"
        super().__init__(f"{where}{kind} {name!r} is not known{hint}")


class InputError(AtalaiaError):
    """An input does not fit; the message names the field and what is allowed."""


class StartConflictError(AtalaiaError):
    """The idempotency key of a start is taken by a saga with another input."""


class NotFoundError(AtalaiaError):
    """There is no such saga, step or incident."""


class RefusedError(AtalaiaError):
    """The saga is in a state that does not allow the command; nothing was changed."""


class LeaseLostError(AtalaiaError):
    """The attempt no longer holds its lease: stop working, and return nothing."""


class ConfigurationError(AtalaiaError):
    """The settings contradict each other or name something that is not there."""
