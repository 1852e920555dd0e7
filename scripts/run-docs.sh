#!/usr/bin/env bash
# Runs every command that the documentation shows: the ```sh blocks of README.md and docs/*.md, in this checkout, with
# small budgets as shown. Blocks marked ```sh-long (hours, or what CI runs anyway) and ```text are not run.
set -euo pipefail
cd "$(dirname "$0")/.."
# Later pages use what earlier ones made.
pages=(README.md docs/{quickstart,data,train,eval,compare,generate,inspect,trace,numerics}.md)
for page in docs/*.md; do
  grep -q '^```sh$' "$page" || continue
  case " ${pages[*]} " in *" $page "*) ;; *) echo "error: $page is not in the list of $0" >&2; exit 1 ;; esac
done
for page in "${pages[@]}"; do
  script=$(awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$page")
  [ -n "$script" ] || continue
  echo "--- $page"
  bash -euo pipefail -c "$script" < /dev/null || { echo "error: a command of $page failed" >&2; exit 1; }
done
echo 'all documented commands ran'
