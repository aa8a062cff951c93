"""Checks the licences of every dependency against the list in deny.toml.

`cargo deny check licenses` does this and more; this is for machines without it. An SPDX expression passes when one of
its OR branches has only allowed licences.
"""

import json
import re
import subprocess
import sys


def allowed_licences():
    """The `allow` list of deny.toml; the file is simple enough not to need a TOML parser (Python 3.9 has none)."""
    text = open("deny.toml", encoding="utf-8").read()
    block = re.search(r"^allow = \[(.*?)\]", text, re.S | re.M).group(1)
    return set(re.findall(r'"([^"]+)"', block))


def passes(expression, allowed):
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        result = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one():
        token = tokens.pop(0)
        if token == "(":
            result = either()
            tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token += " WITH " + tokens.pop(0)
        return token in allowed

    return either()


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["packages"]
    allowed = allowed_licences()
    bad = [p for p in packages if not p["license"] or not passes(p["license"], allowed)]
    for package in bad:
        print(f"licence of {package['name']} {package['version']} is not allowed: {package['license']}", file=sys.stderr)
    print(f"licences: {len(packages) - len(bad)} good, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
