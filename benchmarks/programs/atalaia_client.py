"""The client of Atalaia, as a program: ``… atalaia_client``, or ``… atalaia_client -inline``."""

import sys

from benchmarks.programs.atalaia import client

if __name__ == "__main__":
    client("".join(sys.argv[1:]))
