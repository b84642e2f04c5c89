"""The one file that remembers: conversations, costs and budgets, in SQLite, readable by its owner alone.

Several kernels use it at once. Each piece of work is one transaction on a connection of its own, so nothing is held
open between them and any thread may do it. The journal is a write-ahead log where the file system is this machine's
own, else the rollback journal, as a log needs memory that all its users share. A file that is damaged is moved aside,
never deleted, and a new one begun; whoever opens it is told.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aiflow_jupyter.errors import ConfigError

VERSION: Final = 2
BUSY_S: Final = 5.0

_SHARED: Final = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "9p",
    "fuse",
    "glusterfs",
    "orangefs",
)
"""How the names of file systems begin whose users may be on several machines."""

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

    Attributes:
        moved: where a damaged file was moved to, None where none was; for a message to the user.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self.moved: Path | None = None
        self._ready = False

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
            if not isinstance(error, sqlite3.OperationalError):
                self._ready = False  # damaged: the next one looks at the whole file, and moves it aside
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
        try:
            return self._opened()
        except sqlite3.OperationalError as error:
            raise self._unusable(error) from error
        except sqlite3.DatabaseError:  # it is no database, or a damaged one
            self._move_aside()
            try:
                return self._opened()
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def _opened(self) -> sqlite3.Connection:
        self._guarded()
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            if not self._ready:
                self._choose_journal(connection)
                if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                    raise sqlite3.DatabaseError("damaged")  # noqa: TRY301 - as if it had not opened
                self._migrate(connection)
                self._ready = True
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten, too
        except BaseException:
            connection.close()
            raise
        return connection

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
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise ConfigError(
                f"{self.path} was written by a newer aiflow-jupyter (version {version}; this one knows {VERSION})",
                code="AF762",
                hint="update aiflow-jupyter, or set AIFLOW_DATABASE to another file",
            )
        connection.executescript(_SCHEMA)
        if version < VERSION:
            self._upgrade(connection)

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Bring a file of an earlier version to this one, once, also where several processes begin at once."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(turns)")}
            if "stay" not in columns:
                connection.execute("ALTER TABLE turns ADD COLUMN stay TEXT NOT NULL DEFAULT 'anywhere'")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _guarded(self) -> None:
        """See that the file is there, its owner's, and nobody else's to read."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                found = self.path.stat()
                if not stat.S_ISREG(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
                    raise ConfigError(
                        f"{self.path} is not a file of yours",
                        code="AF762",
                        hint="set AIFLOW_DATABASE to a file in a folder of your own",
                    ) from None
                if stat.S_IMODE(found.st_mode) & 0o077:
                    self.path.chmod(0o600)
        except OSError as error:
            raise ConfigError(
                f"{self.path} can't be made: {error.strerror or error}",
                code="AF762",
                hint="set AIFLOW_DATABASE to a file in a folder that you can write to",
            ) from error

    def _move_aside(self) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for suffix in ("", "-wal", "-shm", "-journal"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                target = source.with_name(f"{self.path.name}.damaged-{stamp}-{os.getpid()}{suffix}")
                source.rename(target)
                if not suffix:
                    self.moved = target
        self._ready = False

    def _unusable(self, error: sqlite3.Error) -> ConfigError:
        locked = "locked" in str(error) or "busy" in str(error)
        return ConfigError(
            f"{self.path} {f'stayed locked for {BUSY_S:g} s' if locked else f'can not be used: {error}'}",
            code="AF761",
            hint="another kernel writes to it; try again"
            if locked
            else "look at the folder's space and permissions, or set AIFLOW_DATABASE to another file",
        )


def local_file_system(path: Path) -> bool:
    """Whether a file is on this machine's own disk, as far as the system says; True where it does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    where = str(path.parent.resolve())
    found = ("", "")
    for line in mounts:
        parts = line.split()
        if len(parts) < 3:
            continue
        mount = parts[1].replace("\\040", " ")
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found[0]):
            found = mount, parts[2]
    return not found[1].startswith(_SHARED)
