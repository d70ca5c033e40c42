"""A database that loses what it has committed is told from one that keeps it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks import durability
from tasks.findings import Level

GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
    "server_version_num": "180000",
}
HERE = [SimpleNamespace(mountpoint="/", fstype="ext4")]


def test_postgresql_as_it_is_installed_keeps_what_it_has_committed() -> None:
    assert list(durability.postgresql(GOOD)) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("synchronous_commit", "off"),
        ("statement_timeout", "500"),
        ("idle_in_transaction_session_timeout", "9999"),
        ("lock_timeout", "1"),
        ("transaction_timeout", "5000"),
    ],
)
def test_each_setting_that_loses_or_cuts_is_told(setting: str, value: str) -> None:
    (finding,) = durability.postgresql(GOOD | {setting: value})
    assert (finding.level, finding.setting) == (Level.WARNING, setting)
    assert finding.why
    assert finding.remedy


def test_a_local_commit_is_told_only_where_there_are_standbys() -> None:
    local = GOOD | {"synchronous_commit": "local"}
    assert list(durability.postgresql(local)) == []
    (finding,) = durability.postgresql(local | {"synchronous_standby_names": "*"})
    assert "fail-over" in finding.why


@pytest.mark.parametrize(("version", "told"), [("120022", True), ("130000", False)])
def test_a_server_that_is_too_old_is_an_error(version: str, told: bool) -> None:
    found = list(durability.postgresql(GOOD | {"server_version_num": version}))
    assert [finding.level for finding in found] == [Level.ERROR] * told


GOOD_MYSQL = {
    "version": "10.11.19-MariaDB-0+deb12u1",
    "engines": "InnoDB",
    "binlog_format": "MIXED",
    "innodb_doublewrite": "ON",
    "innodb_flush_log_at_trx_commit": "1",
    "log_bin": "ON",
    "max_allowed_packet": "16777216",
    "sync_binlog": "1",
    "max_statement_time": "0.000000",
}


@pytest.mark.parametrize(
    "besides", [{}, {"log_bin": "OFF", "sync_binlog": "0"}, {"version": "8.4.3"}]
)
def test_mariadb_and_mysql_that_wait_for_the_disk_keep_what_they_have_committed(
    besides: dict[str, str],
) -> None:
    assert list(durability.mysql(GOOD_MYSQL | besides)) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("innodb_flush_log_at_trx_commit", "2"),
        ("sync_binlog", "0"),
        ("innodb_doublewrite", "OFF"),
        ("max_allowed_packet", "16777215"),
        ("max_statement_time", "2.500000"),
        ("idle_transaction_timeout", "9"),
        ("idle_write_transaction_timeout", "1"),
        ("wsrep_on", "ON"),
    ],
)
def test_each_setting_of_mariadb_that_loses_or_cuts_is_told(setting: str, value: str) -> None:
    (finding,) = durability.mysql(GOOD_MYSQL | {setting: value})
    assert (finding.level, finding.setting) == (Level.WARNING, setting)
    assert finding.why
    assert finding.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "10.5.28-MariaDB"},
        {"version": "8.0.16"},
        {"engines": "InnoDB MyISAM"},
        {"binlog_format": "STATEMENT"},
    ],
)
def test_a_mariadb_on_which_transactions_do_not_hold_is_an_error(wrong: dict[str, str]) -> None:
    (finding,) = durability.mysql(GOOD_MYSQL | wrong)
    assert finding.level is Level.ERROR
    assert finding.remedy


@pytest.mark.parametrize(("most", "told"), [(18, True), (19, False)])
def test_a_server_that_lets_in_too_few_is_told(most: int, told: bool) -> None:
    assert len(list(durability.connections(most, concurrency=8, each=10))) == told


@pytest.mark.parametrize(
    ("journal", "synchronous", "settings"),
    [
        ("wal", "2", []),
        ("wal", "3", []),
        ("delete", "2", ["journal_mode"]),
        ("wal", "1", ["synchronous"]),
    ],
)
def test_sqlite_writes_ahead_and_waits_for_the_disk(
    journal: str, synchronous: str, settings: list[str]
) -> None:
    found = {"journal_mode": journal, "synchronous": synchronous}
    told = durability.sqlite(found, Path("/srv/a.db"), HERE)
    assert [finding.setting for finding in told] == settings


def test_sqlite_in_memory_is_told() -> None:
    found = {"journal_mode": "memory", "synchronous": "2"}
    (finding,) = durability.sqlite(found, None, HERE)
    assert "ends with its process" in finding.why


@pytest.mark.parametrize(
    ("file", "kind"),
    [("/srv/share/a.db", "nfs4"), ("/srv/sharecropper/a.db", None), ("/a.db", None)],
)
def test_the_nearest_mount_tells_the_file_system(file: str, kind: str | None) -> None:
    mounts = [
        SimpleNamespace(mountpoint="/srv/share", fstype="NFS4"),
        SimpleNamespace(mountpoint="/", fstype="ext4"),
    ]
    assert durability.network_file_system(Path(file), mounts) == kind


def test_the_mounts_of_this_machine_can_be_read() -> None:
    assert "/" in {mount.mountpoint for mount in durability.mounted()}


@pytest.mark.parametrize(
    ("worker_pool", "concurrency", "levels"),
    [
        ("threads", 10, []),
        ("threads", 11, [Level.WARNING]),
        ("prefork", 10, []),
        ("prefork", 11, [Level.NOTE]),
    ],
)
def test_threads_share_the_connections_of_their_process(
    worker_pool: str, concurrency: int, levels: list[Level]
) -> None:
    found = durability.pool(worker_pool, concurrency, most=10)
    assert [finding.level for finding in found] == levels
