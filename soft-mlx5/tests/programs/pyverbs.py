#!/usr/bin/python3
"""rdma-core's own python tests (pyverbs) on soft-mlx5, one process per test, strict.

    pyverbs.py SOFT_MLX5 [FILTER]       run the tests whose name contains FILTER, print a table
    pyverbs.py --newer COMMAND ...      run all tests of a newer rdma-core, see scripts/newer-rdma-core.sh

UNDER is a command that starts each test on the device, for example `doorbell run --`.

Fails on a failure, on a time-out, on a skip that python-skips.txt does not list for this reason, and on a
line of that list that no test needs any more. Of a newer rdma-core it fails on a failure, on a time-out, and unless every
test of the connection manager passes on Ethernet; it prints the reasons of skips.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import gzip
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

TESTS = "usr/share/doc/rdma-core/tests"
SKIPS = pathlib.Path(__file__).with_name("python-skips.txt")
# Processor time of a test, in seconds. What only waits is stopped later: the machine may be busy.
PROCESSOR_TIME = 60
TIMEOUT = 1200
LINKS = ["ib", "roce"]
PYTHON = ["/usr/bin/python3"]
# Modules for adapters of other vendors, which skip every test.
FOREIGN = ("efa", "irdma")

# There is no module `srq` in rdma-core 44.
MODULES = """addr atomic cq cq_events cqex device flow fork mr parent_domain pd qp qpex relaxed_ordering
    rss_traffic shared_pd tag_matching mlx5_cq mlx5_raw_wqe mlx5_timestamp mlx5_devx mlx5_uar mlx5_query_port
    mlx5_huge_page mlx5_dm_ops mlx5_dc rdmacm""".split()

# Its forked children use the context of their parent, for which they have no device: docs/programs.md.
LEFT_OUT = {"tests.test_device.DMTest.test_multi_process_alloc_dm"}

# On Ethernet libmlx5 44 connects the hidden queue pair of a tag-matching SRQ without a GRH, which the
# kernel's driver refuses: ibv_create_srq_ex fails there on an adapter as well.
ONLY_INFINIBAND = {"tag_matching"}

# Who imports a device or wants an uncached UAR page needs UAR objects, which the device offers in this mode.
SHARED_REGISTERS = ["tests.test_mlx5_devx.", "tests.test_mlx5_uar.", "tests.test_shared_pd.", "tests.test_device.SharedDM"]

Test = collections.namedtuple("Test", "link module name")
Result = collections.namedtuple("Result", "test outcome reason log")


class Skip:
    """A line of the list: a reason that tests may give for not running."""

    def __init__(self, number, line):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or fields[0] not in ("always", "machine"):
            sys.exit(f"{SKIPS.name}:{number}: not `always|machine | test | reason | why`")
        self.number, self.used = number, False
        self.when, self.test, self.reason, self.why = fields

    def covers(self, result):
        return fnmatch.fnmatchcase(result.test.name, self.test) and fnmatch.fnmatchcase(
            result.reason, self.reason
        )


def read_skips():
    lines = enumerate(SKIPS.read_text().splitlines(), 1)
    return [Skip(number, line) for number, line in lines if line and not line.startswith("#")]


def unpack(root, into):
    """The tests as Debian ships them, some of them compressed."""
    tests = pathlib.Path(root, TESTS)
    if not tests.is_dir():
        sys.exit(f"{tests} is missing: install rdma-core and python3-pyverbs")
    for path in tests.iterdir():
        if path.suffix == ".gz":
            (into / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        else:
            shutil.copy(path, into)


def run_tests(soft_mlx5, tests, options, *arguments):
    command = [soft_mlx5, "run", "--strict", *options, "--", *os.environ.get("UNDER", "").split()]
    command += [*PYTHON, "run_tests.py", *arguments]
    return subprocess.run(
        command,
        cwd=tests,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_TIME, PROCESSOR_TIME)),
    )


def list_tests(soft_mlx5, tests, wanted, newer):
    names = run_tests(soft_mlx5, tests, [], "--list-tests").stdout.split()
    if newer:
        modules = {name.split(".")[1].removeprefix("test_") for name in names if name.startswith("tests.test_")}
        MODULES[:] = sorted(module for module in modules if not module.startswith(FOREIGN))
    found = []
    for module in MODULES:
        prefix = f"tests.test_{module}."
        of_module = sorted({name for name in names if name.startswith(prefix)} - LEFT_OUT)
        if not of_module:
            sys.exit(f"rdma-core's tests have no module {module}")
        for link in LINKS[:1] if module in ONLY_INFINIBAND else LINKS:
            found += [Test(link, module, name) for name in of_module if wanted in name]
    return found


def run_one(soft_mlx5, tests, test):
    # With an asterisk the pattern must match the whole name, so this selects one test only.
    pattern = "*" + test.name.removeprefix("tests")
    options = ["--link", test.link]
    if any(test.name.startswith(prefix) for prefix in SHARED_REGISTERS):
        options.append("--shared-registers")
    try:
        run = run_tests(soft_mlx5, tests, options, "-v", "--dev", "mlx5_0", "-k", pattern)
    except subprocess.TimeoutExpired as late:
        return Result(test, "failed", f"no end after {TIMEOUT} s", str(late.stdout or ""))
    skipped = re.search(r"\.\.\. skipped ['\"](.*)['\"]$", run.stdout, re.MULTILINE)
    # A pattern that matches nothing also ends with OK.
    if run.returncode != 0 or "\nRan 1 test in " not in run.stdout:
        last = [line for line in run.stdout.splitlines() if "Error" in line][-1:]
        reason = last[0] if last else f"exit code {run.returncode}"
        return Result(test, "failed", reason, run.stdout)
    if skipped:
        return Result(test, "skipped", skipped.group(1), run.stdout)
    return Result(test, "passed", "", run.stdout)


def run_all(soft_mlx5, tests, wanted, newer):
    chosen = list_tests(soft_mlx5, tests, wanted, newer)
    if not chosen:
        sys.exit(f"no test has {wanted} in its name")
    with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        return list(pool.map(lambda test: run_one(soft_mlx5, tests, test), chosen))


def table(results):
    """Rows of module, passed, failed and skipped on InfiniBand, the same on Ethernet."""
    counts = collections.Counter((r.test.module, r.test.link, r.outcome) for r in results)
    outcomes = ["passed", "failed", "skipped"]
    rows = [
        [module] + [counts[module, link, outcome] for link in LINKS for outcome in outcomes]
        for module in MODULES
        if any(key[0] == module for key in counts)
    ]
    return rows + [["all"] + [sum(column) for column in list(zip(*rows))[1:]]]


HEADINGS = ["module"] + [f"{o}, {link}" for link in LINKS for o in ("passed", "failed", "skipped")]


def show(results):
    widths = [max(len(HEADINGS[0]), 17)] + [len(heading) for heading in HEADINGS[1:]]
    for row in [HEADINGS] + table(results):
        first, *others = [str(cell) for cell in row]
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        print(first.ljust(widths[0]), *cells, sep="  ")
    reasons = collections.Counter((r.outcome, r.reason) for r in results if r.outcome != "passed")
    for (outcome, reason), count in sorted(reasons.items()):
        print(f"{outcome} {count:3}: {reason}")


def judge_newer(results):
    """What is wrong with these results of a newer rdma-core."""
    failed = [r for r in results if r.outcome == "failed"]
    complaints = [f"{r.test.link} {r.test.name}: {r.reason}\n{r.log}" for r in failed]
    connected = [r for r in results if (r.test.link, r.test.module) == ("roce", "rdmacm")]
    skipped = [r for r in connected if r.outcome == "skipped"]
    complaints += [f"{r.test.name}: skipped on Ethernet: {r.reason}" for r in skipped]
    return complaints if connected else complaints + ["there is no test of the connection manager"]


def judge(results, skips, complete):
    """What is wrong with these results."""
    complaints = []
    for result in results:
        test = result.test
        if result.outcome == "failed":
            complaints.append(f"{test.link} {test.name}: {result.reason}\n{result.log}")
        if result.outcome == "skipped":
            covering = [skip for skip in skips if skip.covers(result)]
            for skip in covering:
                skip.used = True
            if not covering:
                complaints.append(f"{test.link} {test.name}: skipped, unlisted: {result.reason}")
    for skip in skips:
        if complete and not skip.used and skip.when == "always":
            complaints.append(f"{SKIPS.name}:{skip.number}: no test is skipped for this any more")
    return complaints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("soft_mlx5")
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--newer", metavar="COMMAND")
    arguments = parser.parse_args()
    soft_mlx5 = os.path.abspath(arguments.soft_mlx5)
    skips = read_skips()
    root = "/"
    if arguments.newer:
        PYTHON[:] = arguments.newer.split()
        # The interpreter is ROOT/usr/bin/python3.N.
        root = pathlib.Path(PYTHON[-1]).parents[2]
    with tempfile.TemporaryDirectory(prefix="pyverbs-") as tests:
        unpack(root, pathlib.Path(tests))
        results = run_all(soft_mlx5, tests, arguments.filter, arguments.newer)
    show(results)
    newer, complete = arguments.newer, not arguments.filter
    complaints = judge_newer(results) if newer else judge(results, skips, complete)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    # As a test harness of Rust says it.
    passed = sum(result.outcome == "passed" for result in results)
    skipped = sum(result.outcome == "skipped" for result in results)
    verdict = "FAILED" if complaints else "ok"
    print(f"test result: {verdict}. {passed} passed; {len(complaints)} failed; {skipped} skipped")
    if complaints:
        sys.exit(f"pyverbs: {len(complaints)} complaints")


if __name__ == "__main__":
    main()
