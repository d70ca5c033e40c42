"""What real workers, with forked children that come and go, show of what they do."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from models.states import SagaState
from tests.support.waiting import eventually
from tests.support.workers import Process, Rig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


def port_of(worker: Process) -> int:
    """Return the port on which a worker listens; it has no other."""

    def listening() -> list[int]:
        connections = psutil.Process(worker.pid).net_connections("tcp")
        return [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]

    (port,) = eventually(listening, within=10, describe="the worker shows its metrics")
    return port


def counted(url: str, name: str, **labels: str) -> float:
    """Return the sum of a metric over all that has these labels."""
    families = text_string_to_metric_families(httpx.get(url).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def spans_in(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def test_a_worker_adds_up_what_its_children_count_also_of_those_that_are_dead(rig: Rig) -> None:
    rig.env_more = {"ATALAIA_METRICS_PORT": "0"}
    url = f"http://127.0.0.1:{port_of(rig.worker('agents'))}/metrics"
    first = rig.start_trip()
    assert first.wait(20).state is SagaState.COMPLETED

    rig.partners["hotels"].switch(hold={"hold": 60, "count": 1, "on": ["order"]})
    second = rig.start_trip()
    rig.partners["hotels"].wait_for_hold()
    os.kill(rig.step(second.saga_id, "hotel").pid, signal.SIGKILL)
    assert second.wait(30).state is SagaState.COMPLETED

    # The hotel's second attempt was never reported: a probe found out what it had done.
    succeeded = {"outcome": "succeeded", "operation": "action"}
    eventually(
        lambda: counted(url, "atalaia_attempts_total", **succeeded) == 9,
        within=5,
        describe=lambda: httpx.get(url).text,
    )
    assert counted(url, "atalaia_attempts_total", agent="hotels.book", **succeeded) == 1
    assert counted(url, "atalaia_questions_total", agent="hotels.book", answer="applied") == 1
    assert counted(url, "atalaia_agent_call_duration_seconds_count", operation="action") == 9
    assert counted(url, "atalaia_rescues_total", cause="lost_processes") == 1


def test_a_supervisor_shows_its_sweeps(rig: Rig) -> None:
    rig.env_more = {"ATALAIA_METRICS_PORT": "0", "ATALAIA_SWEEP_INTERVAL": "0.2"}
    url = f"http://127.0.0.1:{port_of(rig.supervisor())}/metrics"
    rig.beat()
    eventually(
        lambda: counted(url, "atalaia_sweep_duration_seconds_count") >= 2,
        within=20,
        describe=lambda: httpx.get(url).text,
    )


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_work(rig: Rig) -> None:
    rig.env_more = {"ATALAIA_METRICS_PORT": "0"}
    port = port_of(rig.worker("agents"))
    rig.env_more = {"ATALAIA_METRICS_PORT": str(port)}
    rig.worker("others")
    assert rig.start_trip().wait(20).state is SagaState.COMPLETED
    assert "not shown" in (rig.home / "others.log").read_text()


def test_what_forked_children_do_is_in_the_trace_of_the_saga(rig: Rig) -> None:
    rig.env_more = {"ATALAIA_AGENTS": "tasks.agents,tests.support.traced"}
    rig.worker("agents")
    handle = rig.start_trip()
    assert handle.wait(20).state is SagaState.COMPLETED
    file, steps = rig.home / "spans", {"flight", "hotel", "car", "payment", "receipt"}
    eventually(
        lambda: {s["attributes"]["atalaia.step"] for s in actions(file)} == steps,
        within=10,
        describe=lambda: f"every step is recorded: {spans_in(file)}",
    )
    # The test that started it records nothing, so the saga's own id stands for its trace.
    assert {span["context"]["trace_id"] for span in actions(file)} == {
        f"0x{handle.saga_id.int:032x}"
    }


def actions(path: Path) -> list[dict[str, Any]]:
    return [span for span in spans_in(path) if span["name"].startswith("action ")]
