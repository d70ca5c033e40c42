"""The web app as a process: ``python -m tasks.serve``."""

import uvicorn

from orchestration.settings import settings
from tasks.app import runtime
from web.app import create_app


def main() -> None:
    """Serve on 127.0.0.1 until SIGTERM or SIGINT."""
    uvicorn.run(
        create_app(runtime().scheduler),
        host="127.0.0.1",
        port=settings().web_port,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
