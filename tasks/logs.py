"""The logs of workers and beat: Celery's lines and ours on stderr, once, in one format.

Celery would put its own lines in a format of its own, and wrap whatever else is printed as a
warning. It leaves logging alone when somebody answers its signal; this module does.
"""

import logging
from typing import Any

from celery.signals import setup_logging

from orchestration.settings import settings
from orchestration.telemetry import configure_logs

# What tells of every message says nothing that the journal does not say better.
_QUIET = ("kombu", "amqp", "redis", "httpx", "httpcore", "urllib3")


@setup_logging.connect
def set_up_logs(loglevel: int | str | None = logging.INFO, **_: Any) -> None:
    """Send every log line of this process to stderr, for people or as JSON (ATALAIA_LOG_JSON)."""
    level = logging.getLevelName(loglevel) if isinstance(loglevel, str) else loglevel
    level = level if isinstance(level, int) else logging.INFO
    configure_logs(json=settings().log_json, level=level)
    logging.captureWarnings(capture=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
