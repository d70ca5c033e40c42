"""Start one partner service: `python -m examples.travel.serve hotels --port 8802 --data books`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from examples.travel.ledger import ANY_ITEM, Ledger
from examples.travel.partner import create_app
from examples.travel.wire import SERVICES

HIGHEST_PORT = 65_535


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and {HIGHEST_PORT}")
    return number


def _stock(text: str) -> tuple[str, int]:
    item, _, units = text.rpartition("=")
    if not units.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither UNITS nor ITEM=UNITS")
    return item or ANY_ITEM, int(units)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; a bad one ends the process with a line on stderr and status 2."""
    parser = argparse.ArgumentParser(prog="examples.travel.serve", description=__doc__)
    parser.add_argument("service", choices=sorted(SERVICES))
    parser.add_argument("--port", type=_port, required=True, help="on 127.0.0.1 only")
    parser.add_argument("--data", type=Path, required=True, help="the folder for the books")
    parser.add_argument(
        "--stock",
        type=_stock,
        action="append",
        default=[],
        metavar="[ITEM=]UNITS",
        help="units of one item, or of each item that is not named; unlimited if not given; "
        "only the first start with these books fills the shelves",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = parse(arguments)
    service = SERVICES[options.service]
    ledger = Ledger(options.data / f"{service.name}.sqlite3", service, dict(options.stock))
    uvicorn.run(
        create_app(ledger),
        host="127.0.0.1",
        port=options.port,
        # This one gives access to the connection, which a lost reply needs.
        http="h11",
        proxy_headers=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
