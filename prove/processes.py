"""Processes that a run starts: servers under test, and the stores behind them, which a load may pause, kill and bring back."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path


def free_port():
    """A port that nobody listens on, outside those from which the system takes connections' own."""
    while True:
        free_port.last = 10_000 + (free_port.last - 10_000 + 1) % 20_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", free_port.last))
                return free_port.last
            except OSError:
                continue


free_port.last = 10_000 + os.getpid() * 37 % 20_000


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
        return True
    except OSError:
        return False


class Process:
    """A program with all that it starts."""

    def __init__(self, command, folder, env=None):
        self.command, self.log = command, Path(folder) / "log"
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env={**os.environ, **(env or {})})

    def wait_until(self, ready, seconds=60):
        deadline = time.monotonic() + seconds
        while not ready():
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(map(str, self.command))} does not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def signal(self, number):
        for pid in [self.child.pid, *descendants(self.child.pid)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def end(self):
        self.signal(signal.SIGKILL)
        self.child.wait()


def descendants(pid):
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


class Store:
    """A server of a run's own, which loses nothing that it has confirmed when it is killed."""

    kind = program = scheme = ""

    def __init__(self, folder):
        self.folder, self.port, self.process = Path(folder), free_port(), None
        self.folder.mkdir(parents=True)
        self.make()
        self.start()

    @classmethod
    def is_installed(cls):
        return shutil.which(cls.program) is not None

    def make(self):
        """Makes its data."""

    def start(self):
        self.process = Process(self.command(), self.folder)
        self.process.wait_until(self.is_ready)

    def is_ready(self):
        return listens(self.port)

    def pause(self):
        self.process.signal(signal.SIGSTOP)

    def go_on(self):
        self.process.signal(signal.SIGCONT)

    def kill(self):
        self.process.end()

    def output(self, *command):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


class Redis(Store):
    kind, program = "redis", "redis-server"
    what_is_counted = "reads of requests from connections (`total_reads_processed`)"

    def command(self):
        return ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", self.folder]

    def start(self):
        self.process = Process([str(part) for part in self.command()], self.folder)
        self.process.wait_until(lambda: self.is_ready() and "loading:0" in self.output("redis-cli", "-p", str(self.port), "info", "persistence"))

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def calls(self):
        return int(self.output("redis-cli", "-p", str(self.port), "info", "stats").split("total_reads_processed:")[1].split()[0])


class Postgres(Store):
    kind, program = "postgres", "initdb"
    what_is_counted = "transactions (`xact_commit`)"
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []

    @classmethod
    def is_installed(cls):
        return cls.binary("initdb") is not None

    @staticmethod
    def binary(name):
        return shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None)

    def make(self):
        if self.user:
            shutil.chown(self.folder, "postgres")
        made = [self.binary("initdb"), "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "-D", str(self.folder / "data")]
        subprocess.run([*self.user, *made], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def command(self):
        return [*self.user, self.binary("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]

    def is_ready(self):
        return subprocess.run(["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]).returncode == 0

    def kill(self):
        super().kill()
        (self.folder / "data/postmaster.pid").unlink(missing_ok=True)

    @property
    def url(self):
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def sql(self, statements):
        return self.output("psql", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-Atc", statements)

    def calls(self):
        return int(self.sql("select xact_commit from pg_stat_database where datname = 'postgres'"))


class MariaDb(Store):
    kind, program = "mariadb", "mariadbd"
    what_is_counted = "statements (`Questions`)"
    user = ["--user=root"] if os.getuid() == 0 else []

    def make(self):
        made = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", f"--datadir={self.folder}/data", *self.user]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (self.folder / "data/tollgate").mkdir()

    def command(self):
        places = [f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid", f"--port={self.port}"]
        return ["mariadbd", "--no-defaults", *places, "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=16M", *self.user]

    @property
    def url(self):
        return f"mysql://root@127.0.0.1:{self.port}/tollgate"

    def calls(self):
        ask = ["mariadb", "--no-defaults", "--host=127.0.0.1", f"--port={self.port}", "--user=root", "-NBe", "show global status like 'Questions'"]
        return int(self.output(*ask).split()[1])
