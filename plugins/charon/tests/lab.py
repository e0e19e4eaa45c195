# SPDX-License-Identifier: MIT
"""Two gateways in network namespaces, each with a charon of its own and a scripted lockgated.

Nothing is installed: each charon sees the plugin through a read-only overlay over the directory of
plugins, in a mount namespace of its own, with a /run of its own.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from daemon import Daemon

PLUGINS = "/usr/lib/ipsec/plugins"
CHARON = "/usr/lib/ipsec/charon"


def run(*command, check=True, timeout=15, env=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, env=env, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}")
    return done


def wait(true, seconds=8.0, what="it"):
    """Waits until true() holds, and returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        result = true()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.01)


class Gateway:
    def __init__(self, lab, name, mine, peer, inside, outside, plugin):
        self.more = ""         # further lines of strongswan.conf
        self.program = CHARON
        self.name, self.mine, self.peer = name, mine, peer
        self.inside, self.outside = inside, outside
        self.plugin = plugin
        self.namespace = f"{lab.prefix}{name}"
        self.folder = os.path.join(lab.folder, name)
        os.mkdir(self.folder)
        self.socket = os.path.join(self.folder, "charon.sock")
        self.vici = os.path.join(self.folder, "vici.sock")
        self.log_path = os.path.join(self.folder, "log")
        self.daemon = Daemon(self.socket)
        self.process = None

    def start(self):
        conf = os.path.join(self.folder, "strongswan.conf")
        with open(conf, "w", encoding="utf-8") as out:
            out.write(f"""
charon {{
    load_modular = yes
    install_routes = no
    dos_protection = no
    retransmit_timeout = 0.5
    retransmit_tries = 3
    retransmit_base = 1
    {self.more}
    plugins {{
        include /etc/strongswan.d/charon/*.conf
        stroke {{ load = no }}
        lockgate {{ load = 200
                   socket = {self.socket} }}
        vici {{ socket = unix://{self.vici} }}
    }}
    filelog {{ log {{ path = {self.log_path}
                      default = 1
                      cfg = 2
                      knl = 2
                      flush_line = yes }} }}
}}
""")
        mounts = (f"mount -t tmpfs run /run && "
                  f"mount -t overlay -o ro,lowerdir={self.plugin}:{PLUGINS} overlay {PLUGINS} && "
                  f"exec {self.program}")
        env = dict(os.environ, STRONGSWAN_CONF=conf)
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", "sh", "-c",
             mounts], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL, start_new_session=True)
        wait(lambda: os.path.exists(self.vici) and self.swanctl("--version", check=False)
             and self.swanctl("--stats", check=False).returncode == 0, 8, "charon's start")
        return self

    def stop(self, how=signal.SIGTERM):
        if not self.process:
            return
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(4)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(4)
        code, self.process = self.process.returncode, None
        if os.path.exists(self.vici):
            os.unlink(self.vici)
        return code

    def swanctl(self, *arguments, check=True, timeout=15):
        return run("swanctl", *arguments, "--uri", f"unix://{self.vici}", check=check,
                   timeout=timeout)

    def load(self, child="", connection="", esp="aes128gcm16-esn", **names):
        """Loads a connection `c` with a child `net`."""
        path = os.path.join(self.folder, "swanctl.conf")
        local = names.get("local_ts", self.inside)
        remote = names.get("remote_ts", self.outside)
        # Further children, net1 and so on, each with a network of its own.
        more = "".join(f"""
            net{number} {{
                local_ts = {local.replace(".0.0/24", f".{number}.0/24")}
                remote_ts = {remote.replace(".0.0/24", f".{number}.0/24")}
                esp_proposals = {esp}
                {names.get("more_child", "")}
            }}""" for number in range(1, names.get("more", 0) + 1))
        with open(path, "w", encoding="utf-8") as out:
            out.write(f"""
connections {{
    c {{
        local_addrs = {names.get("local", self.mine)}
        remote_addrs = {names.get("remote", self.peer)}
        proposals = aes128-sha256-x25519
        {connection}
        local {{ auth = psk
                 id = {self.name} }}
        remote {{ auth = psk }}
        children {{
            net {{
                local_ts = {local}
                remote_ts = {remote}
                esp_proposals = {esp}
                {child}
            }}{more}
        }}
    }}
}}
secrets {{ ike-1 {{ secret = "not a secret" }} }}
""")
        self.swanctl("--load-creds", "--file", path)
        return self.swanctl("--load-conns", "--file", path, check=False)

    def initiate(self, check=True, seconds=6, child="net"):
        return self.swanctl("--initiate", "--child", child, "--timeout", str(seconds),
                            check=check)

    def terminate(self):
        return self.swanctl("--terminate", "--ike", "c", "--timeout", "5")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def logged(self, text):
        return re.search(text, self.log())

    def xfrm_sockets(self):
        """Netlink sockets of the kernel's IPsec in the namespace, the kernel's own left out."""
        lines = run("ip", "netns", "exec", self.namespace, "cat", "/proc/net/netlink").stdout
        rows = [line.split() for line in lines.splitlines()[1:]]
        return [row for row in rows if row[1] == "6" and row[2] != "0"]


class Lab:
    """Gateways a and b with a wire between them. Everything ends with the `with` block."""

    def __init__(self, plugin):
        self.plugin = plugin
        self.prefix = f"lgc{os.getpid()}-"
        self.folder = tempfile.mkdtemp(prefix="lockgate-charon-")
        self.gateways = []

    def __enter__(self):
        try:
            names = [self.prefix + name for name in "ab"]
            for name in names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", names[0], "link", "add", "w", "type", "veth", "peer", "name", "w",
                "netns", names[1])
            for number, name in enumerate(names, 1):
                run("ip", "-n", name, "address", "add", f"10.99.0.{number}/24", "dev", "w")
                run("ip", "-n", name, "link", "set", "w", "up")
            self.a = Gateway(self, "a", "10.99.0.1", "10.99.0.2", "10.1.0.0/24", "10.2.0.0/24",
                             self.plugin)
            self.b = Gateway(self, "b", "10.99.0.2", "10.99.0.1", "10.2.0.0/24", "10.1.0.0/24",
                             self.plugin)
            self.gateways = [self.a, self.b]
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for gateway in self.gateways:
            gateway.stop()
            gateway.daemon.stop()
        for name in "ab":
            run("ip", "netns", "del", self.prefix + name, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        for gateway in self.gateways:
            if not gateway.daemon.listener:
                gateway.daemon.start()
            gateway.start()
        return self.a, self.b

    def up(self, **settings):
        """Both started, connected, loaded, and the child established by a."""
        a, b = self.start()
        a.load(**settings)
        b.load(**settings)
        a.initiate()
        wait(lambda: len(a.daemon.sas) == 2 and len(b.daemon.sas) == 2, 4, "two SAs at each end")
        return a, b
