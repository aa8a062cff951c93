"""Processes that are measured: started, waited for, read from /proc, stopped."""
import os, signal, socket, subprocess, tempfile, time
from pathlib import Path


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, what, deadline=20.0):
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"{what} did not listen on its port within {deadline:.0f} s")


def tree(pid):
    """The process and its descendants."""
    found, queue = [], [pid]
    while queue:
        p = queue.pop()
        found.append(p)
        for task in Path(f"/proc/{p}/task").glob("*/children"):
            try:
                queue += [int(c) for c in task.read_text().split()]
            except OSError:
                pass
    return found


def cpu_ns(pid):
    """Exact run time of every thread of the tree, in nanoseconds."""
    total = 0
    for p in tree(pid):
        for stat in Path(f"/proc/{p}/task").glob("*/schedstat"):
            try:
                total += int(stat.read_text().split()[0])
            except OSError:
                pass
    return total


def pss_kib(pid):
    """The proportional set size of the tree."""
    total = 0
    for p in tree(pid):
        try:
            for line in Path(f"/proc/{p}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total


class Proxy:
    """A running proxy: its process, its HTTP/1.1 port, its cleartext HTTP/2 port, its access log (None: it writes none)."""

    def __init__(self, name, command, port, h2_port=None, log=None, stdout=None):
        self.name, self.port, self.h2_port, self.log = name, port, h2_port or port, log
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=stdout or self.output, stderr=self.output, start_new_session=True)
        wait_for(self.port, name)
        wait_for(self.h2_port, name)

    def log_lines(self):
        return sum(chunk.count(b"\n") for chunk in iter(lambda f=open(self.log, "rb"): f.read(1 << 20), b""))

    def stop(self, how=signal.SIGKILL):
        try:
            os.killpg(self.process.pid, how)
        except ProcessLookupError:
            pass
        self.process.wait()


class Upstream(Proxy):
    """NGINX with files of 1 and 64 KiB. It counts the requests that reach it."""

    def __init__(self, work):
        port, status = free_port(), free_port()
        site = work / "site"
        site.mkdir()
        (site / "1k").write_bytes(b"x" * 1024)
        (site / "64k").write_bytes(b"y" * 65536)
        conf = work / "upstream.conf"
        # sendfile with tcp_nopush gives responses of 64 KiB tails of 39 ms; neither is used.
        conf.write_text(f"""
daemon off; worker_processes 1; pid {work}/upstream.pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s; sendfile off; tcp_nodelay on;
  open_file_cache max=100 inactive=300s; client_body_temp_path {work}/upb; client_max_body_size 0;
  proxy_temp_path {work}/upp; fastcgi_temp_path {work}/upf; uwsgi_temp_path {work}/upu; scgi_temp_path {work}/ups;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {site};
    location /post {{ return 200 "$content_length"; }}
    location /deny {{ return 200 "admitted"; }}
    location /r {{ try_files /1k =404; }}
    location /seen {{ return 200 "$http_x_forwarded_for $http_x_forwarded_proto $http_x_forwarded_host"; }} }}
  server {{ listen 127.0.0.1:{status}; location / {{ stub_status; }} }} }}
""")
        self.status = status
        self.asked = 0
        super().__init__("upstream", ["nginx", "-e", "stderr", "-p", str(work), "-c", str(conf)], port)
        wait_for(status, "the upstream's status")

    def requests(self):
        """Requests the upstream has been asked, without those for this number."""
        with socket.create_connection(("127.0.0.1", self.status), 5) as s:
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            page = b""
            while part := s.recv(4096):
                page += part
        self.asked += 1
        # "server accepts handled requests" and a line of the three numbers.
        return int(page.split(b"requests")[1].split()[2]) - self.asked
