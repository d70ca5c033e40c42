"""The Celery chain with each result in PostgreSQL, by Celery's SQLAlchemy backend."""

from benchmarks.contestants.base import Contestant, module
from benchmarks.contestants.celery_chain import beat, worker

CONTESTANT = Contestant(
    name="celery_sql",
    about="Celery chain on Redis, results in PostgreSQL, one prefork worker of 2",
    workers=[worker()],
    servers=[beat()],
    client=module("celery_chain"),
    environment={"BENCH_RESULTS_URL": "{url}"},
    redis=True,
)
