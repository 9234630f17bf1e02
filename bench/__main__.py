"""Runs a benchmark by its name."""

import importlib
import sys

NAMES = ("dashboard", "flow", "functions", "http", "journal", "peers", "store", "waits", "worker", "workflows")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: ./dev bench {'|'.join(NAMES)} [--help]", file=sys.stderr)
        return 2
    bench = importlib.import_module(f"bench.{sys.argv[1]}")
    return int(bench.main(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
