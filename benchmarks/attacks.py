# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a hostile site can do to the others, brought about for real.

python benchmarks/attacks.py --poisoning      accuracy with each average when one of five sites sends wrong updates
"""

import argparse

import poisoning


def main() -> None:
    """Read the command line, run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--poisoning", action="store_true", help="measure what wrong updates do to the accuracy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of training, for --poisoning")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    options = parser.parse_args()
    if options.poisoning:
        poisoning.run(options.set, options.seeds)


if __name__ == "__main__":
    main()
