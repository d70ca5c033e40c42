"""Structured logs with the ids of what they are about. Secrets and payloads are never logged."""

import logging
import sys
from uuid import UUID

import structlog

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
    """Write logs to stderr, as lines for people or as JSON lines."""
    renderer = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
