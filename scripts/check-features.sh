#!/usr/bin/env bash
# Fails when building one crate alone would give burn's dependencies other features than building the whole workspace:
# burn would then be compiled again for each selection (see crates/draftsman-kernels/Cargo.toml).
set -euo pipefail
cd "$(dirname "$0")/.."
tree() { cargo tree "$@" --prefix none --format '{p}|{f}' | sed 's/ (\*)$//' | sort -u; }
all=$(mktemp)
burn=$(mktemp)
tree --workspace --edges normal,build,dev > "$all"
tree -p burn --edges normal,build | cut -d'|' -f1 | sort -u > "$burn"
bad=0
for crate in $(cargo metadata --no-deps --format-version 1 | python3 -c 'import json,sys; print(*[p["name"] for p in json.load(sys.stdin)["packages"]])'); do
  cargo tree -p "$crate" --edges normal --prefix none | grep -q "^burn v" || continue
  for edges in normal,build normal,build,dev; do
    other=$(comm -23 <(tree -p "$crate" --edges "$edges") "$all" | grep -F -f <(sed 's/$/|/' "$burn") || true)
    if [ -n "$other" ]; then
      printf 'error: `-p %s` (%s) builds these with other features than the workspace:\n%s\n' "$crate" "$edges" "$other" >&2
      bad=1
    fi
  done
done
exit $bad
