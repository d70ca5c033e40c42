"""The web app as a process: ``atalaia web``, or ``python -m tasks.serve`` on its own."""

import logging
import socket

import uvicorn

from orchestration.errors import ConfigurationError
from orchestration.settings import settings
from tasks.app import runtime
from tasks.logs import set_up_logs
from web.app import create_app


def serve(host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; raise ``ConfigurationError`` if the address is not to be had.

    Port 0 is any free one; the log says which.
    """
    set_up_logs(logging.INFO)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(runtime().scheduler),
            log_config=None,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
    )
    with listening(host, port) as listener:
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        logging.getLogger("atalaia").info("serving at http://%s:%s/docs", shown, port)
        server.run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise ``ConfigurationError`` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot listen on port {port} of {host}: {why}") from None


def main() -> None:
    """Serve on 127.0.0.1, at the port of the settings."""
    serve("127.0.0.1", settings().web_port)


if __name__ == "__main__":
    main()
