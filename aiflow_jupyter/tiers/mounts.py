"""Whether a file is on a file system of this machine's own: a write-ahead log needs memory that all its users share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
