"""The client of Atalaia, as a program: ``python -m benchmarks.programs.atalaia_client noop``."""

import sys

from benchmarks.programs.atalaia import client

if __name__ == "__main__":
    client(sys.argv[1])
