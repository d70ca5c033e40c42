"""Runs ``atalaia`` many times at the price of a fork: what it imports is imported only once.

Each command still has a process, a folder and an environment of its own. None of our own modules
is imported before the fork, so each command reads its own settings.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
HEAVY = (
    "alembic.command",
    "celery.app.base",
    "celery.signals",
    "fastapi",
    "fastapi.openapi.utils",
    "httpx",
    "jsonschema",
    "kombu.transport.redis",
    "psutil",
    "psycopg",
    "pydantic_settings",
    "redis",
    "rich.live",
    "rich.table",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "typer.main",
)
STREAMS = ("stdin", "stdout", "stderr")


class Forks:
    """The process that forks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(
        self, words: Sequence[str], folder: Path, env: Mapping[str, str], stdin: str, spool: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run one command in ``folder``; ``spool`` is a folder for what it reads and prints."""
        files = {name: str(spool / name) for name in STREAMS}
        (spool / "stdin").write_text(stdin)
        asked = {"words": [*words], "folder": str(folder), "env": dict(env), "files": files}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        out, err = ((spool / name).read_text() for name in STREAMS[1:])
        return subprocess.CompletedProcess(["atalaia", *words], status, out, err)


@contextmanager
def forks() -> Iterator[Forks]:
    """Yield a process that forks, which ends afterwards."""
    command = [sys.executable, "-m", "tests.support.commands"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        yield Forks(process)


def serve() -> None:
    """Fork for each line of standard input, and answer with the command's exit status."""
    for name in HEAVY:
        import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(asked["words"], asked["folder"], asked["env"], asked["files"])
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def become(
    words: Sequence[str], folder: str, env: Mapping[str, str], files: Mapping[str, str]
) -> NoReturn:
    """Be the console command in this very process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, name in enumerate(STREAMS):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(files[name], flags), number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["atalaia", *words]
    status: int | str | None = 70
    try:
        from tasks.cli import main

        status = main()
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - nothing may get back into the loop that forks
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    serve()
