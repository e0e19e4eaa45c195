#!/usr/bin/env python3
"""Lockgate's ESP against others: scapy, tshark, and the RFCs on the primitives of `cryptography`.

    LOCKGATE=target/debug/lockgate LOCKGATED=target/debug/lockgated \\
        target/venv/bin/python tests/interop/run.py [WORD …]

  scapy SUITE MODE FAMILY ESN NAT-T   both directions through `lockgate replay`, byte for byte:
                                      matrix.py
  tshark …                            tshark decrypts what we seal: tshark.py
  live …                              a running daemon in network namespaces, scapy as its peer:
                                      live.py
  check null                          a suite without integrity is refused: here
  overlay KIND FAMILY WHAT            a running daemon with virtual networks, scapy as its hosts:
                                      overlay.py

FAMILY is `4-in-6` (IPv4 inside, IPv6 outside) in tunnel mode, `v4` in transport mode. ESN is `esn`
or `no-esn`, NAT-T `nat-t` or `no-nat-t`. A row that scapy cannot play in full says so and why. With
words, only rows whose names hold all of them run.

The last line says `N passed, N failed, N skipped`; a row that cannot run is skipped, never passed.
The exit code is the number of rows that failed, at most 100.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

logging.getLogger("scapy").setLevel(logging.ERROR)
try:
    import live
    import matrix
    import overlay
    import tshark
    from gateway import Gateway, configuration
    from rows import Failed, all_rows
except ImportError as error:
    MISSING = f"scapy or cryptography is not there: {error}"
else:
    MISSING = None


class Tally:
    """Prints outcomes and counts them."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def take(self, outcomes):
        """Prints and counts names with a failure or `None`, and a note."""
        for name, failure, note in outcomes:
            if failure:
                self.failed += 1
                print(f"{name}: FAILED: {failure}", flush=True)
            else:
                self.passed += 1
                print(f"{name}: ok {note}".rstrip(), flush=True)

    def skip(self, name, reason):
        """Prints and counts what cannot run."""
        self.skipped += 1
        print(f"{name}: SKIPPED: {reason}", flush=True)


def null_is_refused(program, folder, row):
    """`check` refuses a suite without integrity, and names the way for those who want it."""
    text = configuration([row]).replace(f'"{row.suite.name}"', '"null"')
    file = folder / "null.toml"
    file.write_text(text)
    command = [program, "check", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return "check null", f"accepted: {said}", ""
    if "null" not in said:
        return "check null", f"refused for something else: {said}", ""
    return "check null", None, ""


def replayed(tally, program, folder, rows):
    """The rows that need no privileges."""
    gateway = Gateway(program, folder, rows)
    tally.take([null_is_refused(program, folder, rows[0])])
    evidence = matrix.gather(gateway, rows)
    tally.take(matrix.outcomes(evidence))
    if shutil.which("tshark"):
        tally.take(tshark.outcomes(folder, evidence))
        for name, reason in tshark.skipped(rows):
            tally.skip(name, reason)
    else:
        tally.skip("tshark", "tshark is not installed")


def end(*_):
    """Ends the run in order, as Ctrl-C does: what it made is torn down."""
    sys.exit(101)


def main():
    """Runs all rows and counts them."""
    signal.signal(signal.SIGTERM, end)
    tally, start = Tally(), time.monotonic()
    if MISSING:
        tally.skip("interop", MISSING)
        print("0 passed, 0 failed, 1 skipped")
        return 0
    words = sys.argv[1:]
    rows = [row for row in all_rows() if all(word in row.name.split() for word in words)]
    networks = overlay.selected(words)
    if not rows and not networks:
        print(f"no row has {' and '.join(words)} in its name")
        return 1
    program = os.environ.get("LOCKGATE", "target/debug/lockgate")
    daemon = os.environ.get("LOCKGATED", "target/debug/lockgated")
    with tempfile.TemporaryDirectory(prefix=f"lockgate-interop-{os.getpid()}-") as folder:
        if rows:
            try:
                replayed(tally, Path(program).absolute(), Path(folder), rows)
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                tally.take([("scapy", f"lockgate does not run: {failure}", "")])
        reason = live.missing()
        if reason:
            tally.skip("live", reason)
        else:
            daemon = Path(daemon).absolute()
            tally.take(live.outcomes(daemon, rows) if rows else [])
            tally.take(overlay.outcomes(daemon, networks))
    print(f"interop: {time.monotonic() - start:.0f} s")
    print(f"{tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    return min(tally.failed, 100)


if __name__ == "__main__":
    sys.exit(main())
