"""The one file that remembers: conversations, costs and budgets, in SQLite, readable by its owner alone.

Several kernels use it at once. Each piece of work is one transaction on a connection of its own, so nothing is held
open between them and any thread may do it. The journal is a write-ahead log where the file system is this machine's
own, else the rollback journal, as a log needs memory that all its users share.

A file that is damaged is moved aside, never deleted, and a new one begun, by one process while all others wait. The
log of this module says so, wherever that happens: a kernel and a terminal show it on stderr. Another application's
file is left as it is.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from aiflow_jupyter.errors import ConfigError, plain
from aiflow_jupyter.tiers.mounts import local_file_system

_log = logging.getLogger(__name__)

VERSION: Final = 2
BUSY_S: Final = 5.0
APPLICATION: Final = 0x41496677
"""What SQLite's header says of whose file it is; 0 in files that were begun before it was set."""
_TABLES: Final = frozenset({"entries", "turns", "summaries"})
_FULL: Final = 2**20
"""Bytes; a disk with less to spare is full: what then fails is called an I/O error by SQLite, at times."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    day TEXT NOT NULL,
    tier TEXT NOT NULL,
    model TEXT NOT NULL,
    conversation TEXT NOT NULL,
    notebook TEXT NOT NULL,
    currency TEXT NOT NULL,
    most REAL NOT NULL,
    cost REAL,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    state TEXT NOT NULL CHECK (state IN ('intent', 'settled', 'released'))
) STRICT;
CREATE INDEX IF NOT EXISTS entries_by_day ON entries (day);
CREATE INDEX IF NOT EXISTS entries_by_notebook ON entries (notebook);
CREATE TABLE IF NOT EXISTS turns (
    id INTEGER PRIMARY KEY,
    conversation TEXT NOT NULL,
    place INTEGER NOT NULL,
    at REAL NOT NULL,
    tier TEXT NOT NULL,
    model TEXT NOT NULL,
    cell TEXT NOT NULL,
    execution TEXT NOT NULL,
    messages TEXT NOT NULL,
    stay TEXT NOT NULL DEFAULT 'anywhere'
) STRICT;
CREATE INDEX IF NOT EXISTS turns_by_conversation ON turns (conversation, place);
CREATE TABLE IF NOT EXISTS summaries (
    conversation TEXT NOT NULL,
    tier TEXT NOT NULL,
    hash TEXT NOT NULL,
    folded INTEGER NOT NULL,
    at REAL NOT NULL,
    made_by TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (conversation, tier, hash)
) STRICT;
"""


def default_path() -> Path:
    """Where the file is; `AIFLOW_DATABASE` names another one."""
    named = os.environ.get("AIFLOW_DATABASE")
    if named:
        return Path(named)
    from platformdirs import user_data_path  # noqa: PLC0415

    return user_data_path("aiflow-jupyter", appauthor=False) / "aiflow.db"


class Database:
    """The file, and transactions on it.

    Args:
        path: the file; made, with its folder, when first used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._sound = False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes beside: committed at the end, rolled back on an exception.

        Raises:
            ConfigError: the file can't be made, is somebody else's, or stays locked.
        """
        connection = self._connected()
        try:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            self._sound = _locked(error)  # else the next one looks at the whole file, and moves a damaged one aside
            raise self._unusable(error) from error
        finally:
            connection.close()

    def clear_log(self) -> None:
        """Empty the write-ahead log, in which text that was deleted would else stay for a while.

        Raises:
            ConfigError: the file can't be used.
        """
        connection = self._connected()
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error
        finally:
            connection.close()

    def _connected(self) -> sqlite3.Connection:
        """A connection to the file as it has to be, with whatever is needed for that done before."""
        try:
            if self._sound and (connection := self._opened()) is not None:
                return connection
            with self._alone():
                try:
                    self._prepare()
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError:  # it is no database, or a damaged one
                    self._move_aside()
                    self._prepare()
                self._sound = True
                if (connection := self._opened()) is None:
                    raise sqlite3.OperationalError("it changes while it is opened")
                return connection
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep all other processes from beginning the file and from moving it aside.

        An SQLite file of its own is the lock: it waits, works on every system, and goes with a process that dies.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        self._made(lock)
        with closing(sqlite3.connect(lock, timeout=BUSY_S, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            yield

    def _opened(self) -> sqlite3.Connection | None:
        """A connection; None where the file is not as it was left: deleted meanwhile, or damaged."""
        self._made(self.path)
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            if _pragma(connection, "user_version") != VERSION:
                connection.close()
                return None
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten, too
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                return None
            raise
        return connection

    def _prepare(self) -> None:
        """Look at the whole file, and bring it to this version.

        Raises:
            ConfigError: it is another application's, or of a newer version; nothing in it has changed.
            sqlite3.DatabaseError: it is damaged.
        """
        self._made(self.path)
        with closing(sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)) as connection:
            as_it_is = _pragma(connection, "application_id"), _pragma(connection, "user_version")
            self._require_ours(connection, *as_it_is)
            self._choose_journal(connection)
            if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("damaged")
            if as_it_is != (APPLICATION, VERSION):
                self._migrate(connection)
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            self.path.chmod(0o600)

    def _require_ours(self, connection: sqlite3.Connection, application: int, version: int) -> None:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        unmarked = application == 0 and (tables >= _TABLES if version else not tables)
        if application != APPLICATION and not unmarked:
            raise ConfigError(
                f"{self.path} is another application's file",
                code="AF762",
                hint="set AIFLOW_DATABASE to a file that is not there yet",
            )
        if version > VERSION:
            raise ConfigError(
                f"{self.path} was written by a newer aiflow-jupyter (version {version}; this one knows {VERSION})",
                code="AF762",
                hint="update aiflow-jupyter, or set AIFLOW_DATABASE to another file",
            )

    def _choose_journal(self, connection: sqlite3.Connection) -> None:
        """Set the kind of journal, waiting for others that begin at once: SQLite itself does not wait for that."""
        mode = "wal" if local_file_system(self.path) else "delete"
        until = time.monotonic() + BUSY_S
        while True:
            try:
                connection.execute(f"PRAGMA journal_mode = {mode}")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.02)
            else:
                return

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the file to this version in one transaction: a kernel that is killed meanwhile leaves no half of it."""
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
        if "stay" not in {row[1] for row in connection.execute("PRAGMA table_info(turns)")}:
            connection.execute("ALTER TABLE turns ADD COLUMN stay TEXT NOT NULL DEFAULT 'anywhere'")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def _made(self, path: Path) -> None:
        """See that a file is there, and its owner's."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                found = path.stat()
                if not stat.S_ISREG(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
                    raise ConfigError(
                        f"{path} is not a file of yours",
                        code="AF762",
                        hint="set AIFLOW_DATABASE to a file in a folder of your own",
                    ) from None
        except OSError as error:
            raise ConfigError(
                f"{path} can't be made: {error.strerror or error}",
                code="AF762",
                hint="set AIFLOW_DATABASE to a file in a folder that you can write to",
            ) from error

    def _move_aside(self) -> None:
        """Keep the damaged file under another name, its journals first: the new one is not to meet them."""
        name = f"{self.path.name}.damaged-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}"
        try:
            for suffix in ("-wal", "-shm", "-journal", ""):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    source.rename(source.with_name(name + suffix))
        except OSError as error:
            raise ConfigError(
                f"{self.path} is damaged, and can't be moved aside: {error.strerror or error}",
                code="AF762",
                hint="move it elsewhere, or set AIFLOW_DATABASE to another file",
            ) from error
        _log.warning(
            "%s was damaged. It is kept as %s, and a new one is begun: earlier conversations are not in it, and what "
            "was spent before is not counted, so budgets start anew.",
            plain(str(self.path)),
            plain(str(self.path.with_name(name))),
        )

    def _unusable(self, error: sqlite3.Error) -> ConfigError:
        if _locked(error):
            why, hint = f"stayed locked for {BUSY_S:g} s", "another kernel writes to it; try again"
        elif "full" in str(error) or ("I/O" in str(error) and shutil.disk_usage(self.path.parent).free < _FULL):
            why, hint = "can't be written: the disk is full", "make room, or set AIFLOW_DATABASE to a file elsewhere"
        else:
            why = f"can't be used: {error}"
            hint = "look at the folder's permissions, or set AIFLOW_DATABASE to another file"
        return ConfigError(f"{self.path} {why}", code="AF761", hint=hint)


def _locked(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    found: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return found
