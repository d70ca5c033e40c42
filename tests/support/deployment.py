"""Reads what a deployment starts, and sets, against the program that it starts."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flower.options
import typer
from celery.bin.celery import celery
from tornado.options import options

from orchestration.settings import Settings
from tasks.cli import app

ROOT = Path(__file__).parents[2]
SETTINGS = {f"ATALAIA_{name.upper()}" for name in Settings.model_fields}
FLOWER = flower.options.options is options and {name.replace("-", "_") for name in options}
_QUEUES = "from tasks.app import app; print(*app.amqp.queues)"


def wrong_with(words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a command line: an unknown command, option, module or queue."""
    program, rest = Path(words[0]).name, list(words[1:])
    if program == "atalaia":
        yield from _wrong_with_ours(rest)
    elif program == "celery":
        yield from _wrong_with_celery(rest)
    elif program == "python":
        yield from _wrong_with_python(rest)
    else:
        yield f"{program} is not a program of ours"


def _wrong_with_ours(words: list[str]) -> Iterator[str]:
    commands: Any = typer.main.get_command(app)
    command = commands.commands.get(words[0])
    if command is None:
        yield f"atalaia has no command {words[0]}"
        return
    try:
        context = command.make_context(words[0], words[1:])
    except typer.TyperException as error:
        yield f"atalaia {words[0]}: {error.format_message()}"
        return
    unknown = set(context.params.get("queue") or ()) - queues() - {"%i"}
    yield from (f"there is no queue {name}" for name in sorted(unknown))


def _wrong_with_celery(words: list[str]) -> Iterator[str]:
    if words[:2] != ["-A", "tasks.app"] or find_spec("tasks.app") is None:
        yield f"celery does not begin with -A tasks.app: {words}"
    if words[2] not in celery.commands:
        yield f"celery has no command {words[2]}"
    if words[2] == "flower":
        given = {word.removeprefix("--").partition("=")[0] for word in words[3:]}
        assert FLOWER
        yield from (f"flower has no option {name}" for name in sorted(given - FLOWER))


def _wrong_with_python(words: list[str]) -> Iterator[str]:
    match words:
        case ["-m", module, *_] if find_spec(module) is None:
            yield f"there is no module {module}"
        case ["-m", *_]:
            return
        case ["-c", program]:
            compile(program, "<command>", "exec")
            names = re.findall(r"^import (\w+)", program)
            yield from (f"there is no module {name}" for name in names if find_spec(name) is None)
        case _:
            yield f"python is given {words}"


@cache
def queues() -> set[str]:
    """Return the queues of an installation without settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ATALAIA_")}
    command = [sys.executable, "-c", _QUEUES]
    return set(subprocess.check_output(command, cwd=ROOT, env=env, text=True).split())


def unknown(variables: Sequence[str]) -> list[str]:
    """Return the variables that look like ours and are none."""
    return sorted({name for name in variables if name.startswith("ATALAIA_")} - SETTINGS)
