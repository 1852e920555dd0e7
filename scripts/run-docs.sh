#!/usr/bin/env bash
# Runs every command that the documentation shows: the ```sh blocks of README.md and docs/*.md, in order,
# in this checkout. Blocks of another kind (```text, ```toml, ```sh-long) are not run.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/release:$PATH"
for page in README.md docs/*.md; do
  script=$(awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$page")
  [ -n "$script" ] || continue
  echo "--- $page"
  # `|| exit` and not `set -e` inside: the page's commands run as a reader would type them.
  bash -euo pipefail -c "$script" </dev/null || { echo "error: a command of $page failed" >&2; exit 1; }
done
echo 'all documented commands ran'
