"""Settings: environment variables ``ATALAIA_*``, checked together, all errors reported at once."""

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from orchestration.errors import ConfigurationError

Names = Annotated[tuple[str, ...], NoDecode]


def _seconds(value: Any) -> Any:
    """Return a number that was written as text as a number, and anything else as it is."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Field(gt=timedelta(0))]
SHORTEST_RETENTION = timedelta(days=1)
"""A start that comes by message may come again hours later, and its key must be known then."""
LONGEST_RETENTION = timedelta(days=36_500)
_AGE = TypeAdapter(Annotated[timedelta, BeforeValidator(_seconds)])


def age(text: str) -> timedelta:
    """Return a duration from zero to a hundred years; raise ``ValueError`` that says so."""
    try:
        given = _AGE.validate_python(text)
    except (ValidationError, OverflowError):
        given = None
    if given is None or not timedelta(0) <= given <= LONGEST_RETENTION:
        msg = f"{text!r} is no duration up to a hundred years, such as P30D"
        raise ValueError(msg) from None
    return given


class Settings(BaseSettings):
    """Everything that can be set. Durations are ISO 8601 (``PT2S``) or seconds."""

    model_config = SettingsConfigDict(env_prefix="ATALAIA_", frozen=True, extra="ignore")

    home: Path = Path(".atalaia")
    """Where the embedded stack keeps its files."""
    database_url: str | None = None
    """``sqlite:///…``, ``postgresql+psycopg://…``, ``mysql+pymysql://…``; unset: in ``home``."""
    broker_url: str | None = None
    """``redis://…``, ``sentinel://…`` or ``amqp://…``; unset: the embedded broker in ``home``."""
    broker_master: str | None = None
    """With ``sentinel://…``: the name under which Sentinel watches the primary."""
    workflows: Names = ("orchestration.workflows",)
    agents: Names = ("tasks.agents",)
    node_name: str | None = None
    """A worker's stable name across restarts; unset: Celery's node name."""
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 2
    sweep_interval: Duration = timedelta(seconds=2)
    sweep_batch: Annotated[int, Field(ge=1, le=10_000)] = 200
    retention: timedelta | None = timedelta(days=30)
    """How long a saga is kept after its end; ``None``, written ``off``: for ever."""
    node_heartbeat: Duration = timedelta(seconds=1)
    node_timeout: Duration = timedelta(seconds=6)
    stop_timeout: Duration = timedelta(seconds=300)
    """How long a worker that was told to end waits for the steps that it runs."""
    web_port: Annotated[int, Field(ge=0, le=65535)] = 8000
    flower_port: Annotated[int, Field(ge=0, le=65535)] = 5555
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Where each worker shows what it counts; 0: any free port; unset: nowhere."""
    log_json: bool = False

    @field_validator("workflows", "agents", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("retention", mode="before")
    @classmethod
    def _retained(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.strip().lower() == "off":
            return None
        try:
            given = age(value)
        except ValueError:
            given = timedelta(0)
        if given < SHORTEST_RETENTION:
            msg = f"{value!r} is neither off nor a duration of at least a day, such as P30D"
            raise ValueError(msg)
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        if self.node_timeout < 3 * self.node_heartbeat:
            msg = (
                f"node_timeout ({self.node_timeout}) must be at least three times node_heartbeat "
                f"({self.node_heartbeat}), or a busy node is taken for a dead one"
            )
            raise ValueError(msg)
        if (self.broker_url or "").startswith("sentinel") and not self.broker_master:
            msg = "broker_url is sentinel://…, so broker_master must name the primary it watches"
            raise ValueError(msg)
        return self

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.home.resolve() / 'atalaia.db'}"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


@lru_cache
def settings() -> Settings:
    """Return the settings of this process; raise ``ConfigurationError`` naming every wrong one."""
    try:
        return Settings()
    except ValidationError as error:
        lines = (
            f"ATALAIA_{'_'.join(map(str, item['loc'])).upper()}: {_said(item['msg'])}"
            if item["loc"]
            else _said(item["msg"])
            for item in error.errors(include_url=False)
        )
        raise ConfigurationError("; ".join(lines)) from None
