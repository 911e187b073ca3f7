"""Who a server runs as, and where its folder can be.

PostgreSQL refuses to run as root. As root we start it as `nobody`, in a folder below the first temporary folder
that `nobody` can reach. No mode of any folder that exists is changed.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

from oncommit.testing.servers.errors import ServerError
from oncommit.testing.servers.watched import User


def unprivileged_user() -> User:
    """The user `nobody`."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return User(65534, 65534)
    return User(entry.pw_uid, entry.pw_gid)


def reachable_by_others(path: Path) -> bool:
    """Whether any user may get to this path and, if a folder, into it."""
    path = path.resolve()
    needed = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & needed == needed and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
    )


def folder_base(*, unprivileged: bool) -> tuple[Path, User | None]:
    """The folder to make temporary folders in, and the user to become there."""
    wanted = Path(tempfile.gettempdir())
    if not unprivileged or os.geteuid() != 0:
        return wanted, None
    for base in (wanted, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):  # noqa: S108 - mkdtemp follows
        if base.is_dir() and reachable_by_others(base):
            return base, unprivileged_user()
    raise ServerError(
        f"Running as root, and an unprivileged user can reach no temporary folder ({wanted}); set TMPDIR."
    )
