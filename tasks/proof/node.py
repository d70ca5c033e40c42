"""The processes of a simulated world: who is acting, on which machine, and how it stops."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from orchestration.roster import NodeIdentity
from tasks.envelope import Envelope
from tasks.proof.strand import Strand

PAUSES = ("pause", "freeze", "outage")


@dataclass
class Machine:
    """One worker node. While it is down or paused it takes no message and does not beat."""

    name: str
    identity: NodeIdentity
    envelope: Envelope
    back_at: datetime | None = None
    """When it can be reached again; ``None``: it is up."""
    clock_shift: float = 0.0
    """How far its own clock is off, in seconds."""
    beaten_at: datetime | None = None
    strands: dict[str, Strand] = field(default_factory=dict)
    """Calls that are held, by their sites."""

    @property
    def up(self) -> bool:
        """Whether it works."""
        return self.back_at is None


@dataclass
class Process:
    """Something that acts: a pool child with one message, a sweep, the caller of a start."""

    role: str
    site: str
    fault: str = ""
    """What is to befall it, such as ``crash@p5``; used up when it has."""
    machine: Machine | None = None
    saga_id: UUID | None = None
    path: str = ""
    number: int = 0
    pid: int = 0
    """Its own number among all processes of the world."""
    strand: Strand | None = None
    struck_by: str = ""
    reached: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What is to happen."""
        return self.fault.partition("@")[0]

    @property
    def point(self) -> str:
        """Where it is to happen."""
        return self.fault.partition("@")[2]

    @property
    def can_be_held(self) -> bool:
        """Whether it may have to be held in its middle, and so needs a stack of its own."""
        return self.kind in PAUSES
