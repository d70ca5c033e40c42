"""Celery's settings: as little state and as few surprises in the broker as it can have.

Correctness never rests on them: the rows decide, and every delivery is fenced. They keep latency
low and keep Celery from doing by itself what the supervisor does better.
"""

from orchestration.settings import settings
from tasks.embedded import EmbeddedBroker

_settings = settings()
_interval = _settings.sweep_interval.total_seconds()

# Without any broker the rows are still written, and whoever has one later sends what they ask for.
broker_url = (
    _settings.broker_url
    or EmbeddedBroker.recorded_url(_settings.home / "broker")
    or "memory://localhost/"
)
_amqp = broker_url.startswith("amqp")
_sentinel = broker_url.startswith("sentinel")

# JSON only, ids only.
accept_content = ["json"]
task_serializer = "json"
event_serializer = "json"
enable_utc = True
timezone = "UTC"

# Results are rows. A backend would add a second truth, and a second thing that can be down.
result_backend = None
task_ignore_result = True

# Acknowledged late and fetched one by one: no short step waits behind a long one.
task_acks_late = True
worker_prefetch_multiplier = 1
# Attempts are counted and repeated in SQL; Celery must repeat nothing by itself.
task_reject_on_worker_lost = False
task_retry_on_worker_lost = False
task_acks_on_failure = True
task_acks_on_timeout = True
# It would look into a result backend; the fence on the row does it better.
worker_deduplicate_successful_tasks = False
# A blip of the broker's connection is harmless; killing a running call makes its outcome unknown.
worker_cancel_long_running_tasks_on_connection_loss = False
worker_lost_wait = 3.0

# The broker may be away for as long as it likes; a publish may not take long.
broker_connection_retry = True
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
broker_channel_error_retry = True
broker_pool_acquire_timeout = 5
task_publish_retry = True
task_publish_retry_policy = {
    "max_retries": 2,
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 0.5,
}
_rabbitmq: dict[str, object] = {
    # Otherwise a message that the server refuses or loses on the way counts as sent.
    "confirm_publish": True,
}
# They hold for Valkey, too, and for both behind Sentinel.
_redis: dict[str, object] = {
    # Far above the longest step: recovery is the supervisor's; a redelivery only costs time.
    "visibility_timeout": 7200,
    # What a dead worker held is looked for every ten seconds, not every hundred.
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    # Without these a frozen broker hangs its callers for ever.
    "socket_timeout": 10,
    "socket_connect_timeout": 3,
    "socket_keepalive": True,
    "health_check_interval": 15,
    # What timed out may be in the queue; the sweep knows whether it was taken.
    "retry_on_timeout": False,
}
if _sentinel:
    _redis |= {
        "master_name": _settings.broker_master,
        # The guards must answer, too, or be passed over for the next one.
        "sentinel_kwargs": {"socket_timeout": 3, "socket_connect_timeout": 3},
    }
broker_transport_options = _rabbitmq if _amqp else _redis
# RabbitMQ: a connection that is cut off without a word is noticed after about a minute.
broker_heartbeat = 30

# A queue that nobody declared is a typo.
task_create_missing_queues = False
task_default_queue = "atalaia"
# Not the queue's name: an app that sends to the queue by name declares an exchange called so.
task_default_exchange = "atalaia-tasks"
task_default_exchange_type = "topic" if _amqp else "direct"
# Quorum queues are replicated, and keep their messages when a node of the cluster is lost.
# RabbitMQ 4 drops a message after twenty deliveries, long after a sweep has sent another one.
task_default_queue_type = "quorum" if _amqp else "classic"
# A quorum queue knows no prefetch limit of a whole connection: it is then set for each consumer.
worker_detect_quorum_queues = True
task_default_delivery_mode = 2  # Written to disk.

# No revokes, no rate limits, no estimated times of arrival: those are kept in SQL.
worker_disable_rate_limits = True
# None is ever sent; if some come from elsewhere, they may not fill the worker's memory.
worker_eta_task_limit = 100
# Nor may a worker declare 28 queues for them on RabbitMQ.
worker_consumer = "tasks.consumer:PromptConsumer"
worker_max_tasks_per_child = 1000
worker_soft_shutdown_timeout = 5.0
worker_enable_soft_shutdown_on_idle = True
worker_hijack_root_logger = True

# Flower, a view and never the truth, has the workers send events for as long as it runs. Without
# it nobody would read them, and they cost more than the rest of what a message costs.
worker_send_task_events = False
task_send_sent_event = False
task_track_started = False

# Beat only rings. A tick that nobody took in time is not worth taking later.
beat_schedule = {
    "supervise": {
        "task": "atalaia.sweep",
        "schedule": _interval,
        "options": {"queue": "supervisor", "expires": _interval},
    }
}
beat_schedule_filename = str(_settings.home / "beat-schedule")
# It writes down each ring, and so the age of its file tells whether it lives.
beat_sync_every = 1
beat_max_loop_interval = max(_interval, 1.0)
