"""What a schedule says, in words: which process died at which moment, which reply was lost."""

from collections.abc import Iterable, Iterator, Mapping

_POINTS = {
    "p0": "after the start is committed and before anything is sent",
    "p1": "while what follows is being committed",
    "p2": "after what follows is committed and before it is sent",
    "p3": "before it takes the lease",
    "p4": "while the lease is being committed",
    "p5": "with the lease taken and nothing sent",
    "send": "just before the request is sent",
    "p6": "after the partner has acted and before the reply is read",
    "p7": "after the reply and before anything is reported",
    "p8": "after the report is committed",
    "p9": "with everything done and the message not yet acknowledged",
    "between": "between two transactions",
    "beat": "",
}
_KINDS = {
    "crash": "the process dies",
    "die": "the whole machine dies",
    "error": "an error of its own stops it",
    "pause": "the process is paused, for longer than it knows",
    "freeze": "the whole machine is paused",
    "outage": "the database goes away",
    "clock": "the machine's clock jumps",
    "commit-kept": "the commit is done and its answer is lost",
    "commit-lost": "the commit is lost",
    "none": "no beat rings for a while",
    "twice": "two supervisors sweep at once",
}
_WIRE = {
    "lost": "the request never arrives",
    "late": "the request arrives late, long after the caller was told of a time-out",
    "reply-lost": "the reply is lost",
    "refused": "the partner refuses",
    "declined": "the partner declines",
    "busy": "the partner is busy",
    "error-before": "the partner fails before it has acted",
    "error-after": "the partner fails after it has acted",
    "pending": "the partner accepts the request and acts later",
    "invalid": "the reply does not validate",
    "lagging": "the answer is older than the effect",
    "unclear": "there is no clear answer",
    "conflict": "the key stands for another request",
    "rejected": "the partner says that nothing ever happened",
    "twice": "its message is delivered twice",
    "days": "its message is delivered again days later",
    "flushed": "the broker forgets all messages",
    "cancel": "a customer cancels",
    "restored": "the database is put back to a backup, and its last commits are gone",
    "beyond": "the request turns up after its lifetime",
}
_CALLED = {
    "action": "the action",
    "compensation": "the compensation",
    "probe": "the probe",
    "close": "the close",
}


def told(script: Mapping[str, str]) -> list[str]:
    """Return each fault of a schedule as a phrase, in the order in which they were asked for."""
    return list(_together(_one(site, fault) for site, fault in script.items()))


def strike_told(what: str) -> str:
    """Return a fault as it is counted (``action crash@p6``, ``partner probe lost``), in words."""
    role, _, fault = what.rpartition(" ")
    return _one("", fault) if "@" in fault or fault in _WIRE else f"{role}: {fault}"


def _together(phrases: Iterable[str]) -> Iterator[str]:
    """Yield each phrase once."""
    yield from dict.fromkeys(phrases)


def _one(site: str, fault: str) -> str:
    kind, _, point = fault.partition("@")
    words = site.partition(" #")[0].split()
    if point:
        what = f"{_KINDS.get(kind, kind)} {_POINTS.get(point, point)}".strip()
    else:
        what = _WIRE.get(kind, kind)
    where = _place(words)
    return f"{where}: {what}" if where else what


def _place(words: list[str]) -> str:
    """Return which call a site is about: ``call s0/hotel action 1``, ``partner probe s0/a 0``."""
    match words:
        case ["call" | "publish", path, operation, *_]:
            return f"{_CALLED.get(operation, operation)} of step {_step(path)!r}"
        case ["partner", operation, path, *_]:
            return f"{_CALLED.get(operation, operation)} of step {_step(path)!r}"
        case ["start", *_]:
            return "the start"
        case ["sweep", *_]:
            return "a sweep"
    return ""


def _step(path: str) -> str:
    return path.partition("/")[2]
