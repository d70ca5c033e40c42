"""Structured logs with the ids of what they are about. Secrets and payloads are never logged.

Everything goes through the standard library's logging: its locks survive a fork, which a worker's
parent does at any time, also while another thread of it writes a line.
"""

import logging
import sys
from typing import Any
from uuid import UUID

import structlog

from orchestration import tracing

Log = structlog.typing.FilteringBoundLogger


def log_for(saga_id: UUID | str, path: str, attempt: int) -> Log:
    """Return a logger bound to a saga, a step and an attempt."""
    log: Log = structlog.get_logger("atalaia").bind(saga=str(saga_id), step=path, attempt=attempt)
    return log


def log_of(part: str) -> Log:
    """Return the logger of one part of the system."""
    log: Log = structlog.get_logger("atalaia").bind(part=part)
    return log


def configure_logs(*, json: bool = False, level: int = logging.INFO) -> None:
    """Write every log line of this process to stderr once, for people or as JSON lines."""
    chain: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *chain],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderer(json=json),
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    structlog.configure(
        processors=[*chain, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _add_trace(
    logger: Any, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add the ids of the span that is under way, if there is one."""
    del logger, method
    event.update(tracing.ids())
    return event


def _renderer(*, json: bool) -> list[structlog.typing.Processor]:
    if json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # The plain form: a broker that is away for an hour must not fill the disk with coloured frames.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


# Until a process says where its logs go, they go where the standard library sends them.
structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
