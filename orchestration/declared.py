"""How a part of a plan is declared: a frozen dataclass that is validated when it is constructed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, ValidationError

from orchestration.errors import DefinitionError

NAME = r"^[a-z][a-z0-9_]*([.-][a-z0-9_]+)*$"
NAME_MAX = 100
LONGEST = timedelta(days=3650)
"""The longest duration that a plan may name, so that every instant it leads to exists."""

Name = Annotated[str, Field(pattern=NAME, max_length=NAME_MAX)]
Duration = Annotated[timedelta, Field(gt=timedelta(0), le=LONGEST)]
Cls = TypeVar("Cls", bound=type[Any])


def explain(error: ValidationError) -> str:
    """Return what is wrong in one line: each field, and what is allowed there."""
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"])))
        for item in error.errors(include_url=False)
    )


@contextmanager
def refusing(kind: str, name: str | None = None) -> Iterator[None]:
    """Turn what pydantic says into a ``DefinitionError`` that names the thing."""
    try:
        yield
    except ValidationError as error:
        where = f"{kind} {name!r}" if name else kind
        msg = f"{where}: {explain(error)}"
        raise DefinitionError(msg) from None


@dataclass_transform(frozen_default=True)
def declared(cls: Cls) -> Cls:
    """Make ``cls`` a frozen, validated dataclass whose errors are ``DefinitionError``."""
    made = pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
    construct: Callable[..., None] = made.__init__

    @wraps(construct)
    def __init__(self: Any, *name: str, **fields: Any) -> None:  # noqa: N807 - it becomes the method
        if name:
            fields["name"], *rest = name
            if rest:
                msg = f"{cls.__name__} {name[0]!r}: takes one name, got also {rest[0]!r}"
                raise DefinitionError(msg)
        with refusing(cls.__name__, fields.get("name")):
            construct(self, **fields)

    made.__init__ = __init__  # type: ignore[method-assign]
    return made  # type: ignore[return-value]
