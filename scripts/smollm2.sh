#!/usr/bin/env bash
# The main job, end to end, on a real model: fetch SmolLM2-135M-Instruct, let it write training answers, train a
# DFlash drafter, evaluate it on HumanEval prompts it has never seen, decode with it.
#
#   bash scripts/smollm2.sh           a small budget: a drafter that has begun to learn
#   bash scripts/smollm2.sh --full    2,200 answers and the whole recipe: the figures of README.md
#   bash scripts/smollm2.sh --smoke   minutes, for CI: everything runs, nothing is learnt
#
# Everything goes to runs/smollm2-BUDGET. A run that was stopped continues where it was.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  --full) budget=full answers=2200 tokens=160 recipe=recipes/smollm2.toml overrides=() prompts=20 new=128 ;;
  --smoke) budget=smoke answers=24 tokens=24 recipe=recipes/smollm2-smoke.toml overrides=() prompts=2 new=16 ;;
  '') budget=small answers=300 tokens=128 recipe=recipes/smollm2.toml prompts=5 new=64
    overrides=(train.steps=400 train.validate_every=100 train.checkpoint_every=100 data.validation_count=16 data.walk_prompts=4) ;;
  *) echo "usage: bash scripts/smollm2.sh [--full|--smoke]" >&2; exit 2 ;;
esac
run=runs/smollm2-$budget
model=models/smollm2.gguf
mkdir -p "$run"

cargo build --release --package draftsman
draftsman() { "${CARGO_TARGET_DIR:-target}/release/draftsman" "$@"; }

echo "== 1/5 fetch"
bash scripts/fetch.sh

echo "== 2/5 the target writes the answers to $answers training prompts"
draftsman data regenerate --target $model --prompts assets/prompts/train.jsonl --limit $answers \
  --max-new-tokens $tokens --rows 128 --out "$run/answers.jsonl"

echo "== 3/5 train a drafter"
resume=()
if [ -d "$run/train/checkpoints" ]; then resume=(--resume); fi
draftsman train --target $model --recipe $recipe --data "$run/answers.jsonl" --out "$run/train" "${resume[@]}" \
  "${overrides[@]}"

echo "== 4/5 evaluate on HumanEval prompts: plain, n-gram lookup, the drafter, both"
draftsman eval --target $model --prompts models/HumanEval.jsonl.gz --num-prompts $prompts --max-new-tokens $new \
  --drafter none --drafter ngram --drafter "$run/train" --drafter "ngram+$run/train" \
  --check-replay --out "$run/eval.json"

echo "== 5/5 decode with it"
draftsman generate --target $model --drafter "$run/train" --max-new-tokens $new \
  "Write a Python function that returns the second largest number of a list."
