"""Celery's worker, or its beat, and nothing else of Celery: ``python -m tasks.program worker …``.

The program ``celery`` loads all of its commands, a shell to type them into and what Flower adds to
them. That is a quarter of a worker's start and a sixth of its memory, and no worker uses any of it.
"""

import gc
import os
import sys
from importlib import import_module
from typing import NoReturn

from celery import maybe_patch_concurrency

APPS = {"worker": "tasks.app", "beat": "tasks.beat"}


def run(role: str, words: list[str]) -> NoReturn:
    """Be what ``celery -A … role words`` would be, to the same options and variables."""
    # Where Celery replaces the functions that wait, nothing of all this may be imported before.
    from celery.bin.base import CLIContext  # noqa: PLC0415

    if role == "worker":
        gc.disable()  # Until the pool is forked; see tasks.node.
    app = import_module(APPS[role]).app
    command = getattr(import_module(f"celery.bin.{role}"), role)
    command.params.extend(app.user_options[role])
    context = CLIContext(app=app, no_color="NO_COLOR" in os.environ, workdir=None)
    variables = f"CELERY_{role.upper()}"
    sys.exit(command.main(words, f"celery {role}", obj=context, auto_envvar_prefix=variables))


if __name__ == "__main__":
    maybe_patch_concurrency()
    run(sys.argv[1], sys.argv[2:])
