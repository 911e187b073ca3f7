"""The process between a test run and one server. Runs as a script; standard library only.

Failure story. The starter (pytest, a demo, a benchmark) may end at any moment and in any way, `kill -9`
included; then every process of the server must end and its folder must go. So the server is not a child of the
starter but of this small process, which

* lives in a session of its own: neither Ctrl-C nor a kill of the starter's group reaches it;
* notices the starter's end by a pidfd, and by the end of the pipe that its commands come through (a forked
  child of the starter may keep that pipe open, so the pipe alone is not enough);
* is a "child subreaper": whatever the server starts stays below it in the process tree, also what leaves the
  server's process group (PostgreSQL's backends and `epmd` do). So the tree, not the group, is what gets killed,
  paused and resumed; and as the server's parent it can never mistake a reused pid for the server's;
* makes the folder itself and removes it, so there is no moment in which it belongs to nobody.

If somebody kills this process with -9, the kernel kills its direct children (PR_SET_PDEATHSIG, set after the
change of uid, which would clear it; here the parent has one thread, so the "death of the parent's thread" that
the signal really means is the death of the parent). The folder then stays. PR_SET_PDEATHSIG from the starter
itself would be shorter, but it fires when the *thread* that started the server ends, which for a fixture run in
a thread pool is any time, and it neither reaches grandchildren nor cleans folders.

Protocol: one JSON object a line on stdin, one JSON answer a line on stdout.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0
STEP_MS = 20

Answer = dict[str, Any]


class StarterGoneError(Exception):
    """The starter ended: clean up and leave."""


class Watchdog:
    def __init__(self, starter: int) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.own = os.getpid()
        self.folder: Path | None = None
        self.segments: list[Path] = []
        self.main: subprocess.Popen[bytes] | None = None
        self.told_to_end = False
        self.ends = select.poll()
        self.ends.register(0, 0)  # only POLLHUP: the other end of the command pipe is closed
        try:
            self.ends.register(os.pidfd_open(starter), select.POLLIN)
        except ProcessLookupError:
            self.told_to_end = True
        if os.getppid() != starter:
            self.told_to_end = True

    # -- waiting, always with an eye on the starter

    def check_starter(self, wait_ms: int = 0) -> None:
        if self.told_to_end or self.ends.poll(wait_ms) or self.told_to_end:
            raise StarterGoneError

    def wait_for(self, done: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            self.check_starter(STEP_MS)
        return True

    # -- the tree of processes below this one

    def tree(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The name, in parentheses, may itself have blanks and parentheses.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
        found, todo = [], [self.own]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found

    def children(self) -> list[int]:
        """Direct children, the dead that nobody has reaped yet included."""
        return [int(pid) for pid in Path(f"/proc/self/task/{self.own}/children").read_text().split()]

    def reap(self) -> None:
        if self.main is not None:
            self.main.poll()  # first, so that its exit status goes to Popen and not to the loop below
        for pid in self.children():
            if self.main is None or pid != self.main.pid:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def send(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def send_to_all(self, number: int) -> None:
        """Until no process is left that has not got it: some may be forking meanwhile."""
        had: set[int] = set()
        while new := set(self.tree()) - had:
            self.send(number, list(new))
            had |= new

    def kill_tree(self) -> None:
        """Until all are reaped: a big process that looks dead may still be giving back its port and memory."""
        deadline = time.monotonic() + 10
        while (self.tree() or self.children()) and time.monotonic() < deadline:
            self.send(signal.SIGKILL, self.tree())
            self.reap()
            time.sleep(0.005)

    # -- commands

    def do_folder(self, base: str, prefix: str, uid: int | None, gid: int | None) -> Answer:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        if uid is not None and gid is not None:
            os.chown(self.folder, uid, gid)
        return {"folder": str(self.folder)}

    def do_spawn(self, program: dict[str, Any], *, main: bool) -> Answer:
        child = self.popen(program)
        if main:
            self.main = child
        return {"pid": child.pid}

    def do_run(self, program: dict[str, Any], seconds: float) -> Answer:
        child = self.popen(program)
        if not self.wait_for(lambda: child.poll() is not None, seconds):
            self.kill_tree()
            return {"exit": None}
        return {"exit": child.returncode}

    def popen(self, program: dict[str, Any]) -> subprocess.Popen[bytes]:
        own, prctl = self.own, self.libc.prctl

        def in_child() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:
                os._exit(127)

        uid, gid = program["uid"], program["gid"]
        with Path(program["log"]).open("ab") as log:
            return subprocess.Popen(
                program["argv"],
                env=program["env"],
                cwd=program["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=uid,
                group=gid,
                extra_groups=[] if uid is not None else None,
                preexec_fn=in_child,  # noqa: PLW1509 - one thread here
            )

    def do_alive(self) -> Answer:
        self.reap()
        return {"alive": self.main is not None and self.main.poll() is None}

    def do_tree(self) -> Answer:
        self.reap()
        return {"pids": self.tree()}

    def do_segment(self, pidfile: str) -> Answer:
        self.segments.append(Path(pidfile))
        return {}

    def do_signal(self, number: int) -> Answer:
        if number == signal.SIGKILL:
            self.kill_tree()
        else:
            self.send_to_all(number)
        return {}

    def do_stop(self, number: int, seconds: float) -> Answer:
        main = self.main
        if main is None or main.poll() is not None:
            self.kill_tree()
            return {"graceful": True}
        self.send_to_all(signal.SIGCONT)
        main.send_signal(number)
        graceful = self.wait_for(lambda: main.poll() is not None, seconds)
        self.kill_tree()
        return {"graceful": graceful}

    # -- the end

    def clean_up(self) -> None:
        self.kill_tree()
        for pidfile in self.segments:
            self.remove_segment(pidfile)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def remove_segment(self, pidfile: Path) -> None:
        """A PostgreSQL killed with -9 leaves one System V segment; its last start would have taken it away."""
        try:
            fields = pidfile.read_text().splitlines()[6].split()
            self.libc.shmctl(int(fields[1]), IPC_RMID, None)
        except (OSError, IndexError, ValueError):
            return

    def answer(self, line: bytes) -> Answer:
        request = json.loads(line)
        try:
            result: Answer = getattr(self, "do_" + request.pop("do"))(**request)
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}
        return result

    def serve(self) -> None:
        commands = select.poll()
        commands.register(0, select.POLLIN)
        waiting = b""
        while True:
            if not commands.poll(0):
                # Nothing to do: wake up for a command or for the starter's end, whichever is first.
                self.ends.modify(0, select.POLLIN)
                self.ends.poll()
                self.ends.modify(0, 0)
                if not commands.poll(0):
                    raise StarterGoneError
            chunk = os.read(0, 65536)
            if not chunk:
                raise StarterGoneError
            waiting += chunk
            while b"\n" in waiting:
                line, _, waiting = waiting.partition(b"\n")
                if line == b'{"do": "close"}':
                    self.clean_up()
                    os.write(1, b"{}\n")
                    return
                os.write(1, json.dumps(self.answer(line)).encode() + b"\n")


def main() -> None:
    watchdog = Watchdog(int(sys.argv[1]))

    def end(_number: int, _frame: object) -> None:
        watchdog.told_to_end = True
        raise StarterGoneError

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    try:
        watchdog.serve()
    except (StarterGoneError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watchdog.clean_up()


if __name__ == "__main__":
    main()
