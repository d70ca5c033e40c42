"""The shell's program, killed (SIGKILL) just before its n-th commit: ``python -c KILLED n …``."""

KILLED = """
import os, signal, sys
from orchestration import failpoint
from tasks.cli import main
left = [int(sys.argv.pop(1))]
def die(point):
    left[0] -= point == "p1"
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
failpoint.install(die)
main()
"""
