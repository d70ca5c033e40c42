"""Celery's settings that cost work are told, and ours are not among them."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from tasks.transport import transport

REDIS = "redis://127.0.0.1/0"
RABBITMQ = "amqp://127.0.0.1//"
SHORT = timedelta(seconds=70)


def named(url: str, longest: timedelta = SHORT, **changed: Any) -> list[str]:
    app = Celery("test", set_as_current=False)
    app.config_from_object("celeryconfig")
    app.conf.update(changed)
    return [finding.setting for finding in transport(app.conf, url, longest)]


def test_our_own_settings_cost_nothing() -> None:
    assert named(REDIS) == []
    assert named(RABBITMQ, broker_transport_options={"confirm_publish": True}) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("result_backend", "redis://127.0.0.1/1"),
        ("task_acks_late", False),
        ("worker_prefetch_multiplier", 4),
        ("worker_prefetch_multiplier", 0),
        ("task_reject_on_worker_lost", True),
        ("task_retry_on_worker_lost", True),
        ("task_acks_on_timeout", False),
        ("worker_cancel_long_running_tasks_on_connection_loss", True),
        ("accept_content", ["json", "pickle"]),
    ],
)
def test_a_setting_that_costs_work_is_told(setting: str, value: Any) -> None:
    assert named(REDIS, **{setting: value}) == [setting]


@pytest.mark.parametrize(
    ("options", "longest", "told"),
    [
        ({"visibility_timeout": 71}, 70, False),
        ({"visibility_timeout": 70}, 70, True),
        ({"visibility_timeout": "60"}, 70, True),
        ({}, 3599, False),
        ({}, 3600, True),
    ],
)
def test_a_step_may_not_outlast_the_visibility_time_out(
    options: dict[str, Any], longest: int, told: bool
) -> None:
    found = named(REDIS, timedelta(seconds=longest), broker_transport_options=options)
    assert found == ["broker_transport_options.visibility_timeout"] * told


def test_rabbitmq_confirms_what_it_is_sent_and_is_patient_enough() -> None:
    unconfirmed = "broker_transport_options.confirm_publish"
    assert named(RABBITMQ, broker_transport_options={}) == [unconfirmed]
    confirmed = {"confirm_publish": True}
    half_an_hour = timedelta(minutes=30)
    found = named(RABBITMQ, half_an_hour, broker_transport_options=confirmed)
    assert found == ["consumer_timeout"]
