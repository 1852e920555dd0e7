#!/usr/bin/env python3
"""Write assets/prompts/train.jsonl: short training prompts, made by program from own templates and word lists.

    python3 scripts/prompts/generate.py [--check HumanEval.jsonl.gz]

The output depends on the seed only. With --check the prompts are compared with an evaluation suite (never read otherwise): none may
share eight words in a row or the name of its function with one of the suite's tasks; one that does fails the run.
"""
import argparse
import gzip
import json
import os
import random
import re
import sys
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_prompts  # noqa: E402
import text_prompts  # noqa: E402

SEED = 20_240_601
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TEXT_FACES = [("explain-topic", text_prompts.explanation, 675), ("list", text_prompts.listing, 450), ("rewrite", text_prompts.rewriting, 450), ("maths", text_prompts.maths, 225)]
# Function names of well-known evaluation tasks (HumanEval): a task of ours may not bear one.
RUNS = ["1 2 3 4 1 2 3 4", "2 3 4 5 6 7 8 9", "0 0 1 0 0 1 0 0", "1 1 0 0 0 0 1 1"]  # runs of digits that also stand in one of its docstrings
TAKEN = set("encode_shift decode_shift has_close_elements monotonic is_palindrome encode_cyclic rolling_max common sort_third unique fib".split())


def draw(rng, source, face, count, seen):
    """`count` new prompts of one face; texts that were drawn before are skipped."""
    out, tries = [], 0
    while len(out) < count:
        tries += 1
        if tries > 60 * count + 1000:
            raise SystemExit(f"{source}: only {len(out)} of {count} different prompts")
        made = face(rng)
        task, text = made if isinstance(made, tuple) else (None, made)
        if task and task.name in TAKEN:
            continue
        key = re.sub(r"\W+", " ", text.lower()).strip()
        # One task body appears at most four times, so that no solution dominates.
        body = (task.family, re.sub(r"\b(%s)\b" % "|".join([re.escape(task.name), *(n for n, _ in task.args)]), "_", task.body)) if task else None
        if key in seen or any(run in key for run in RUNS) or len(text) > 1800 or (body and seen[body] >= (14 if task.family == "hand" else 4)):
            continue
        seen[key] += 1
        if body:
            seen[body] += 1
        out.append((source, text))
    return out


def spread(rng, groups):
    """Mix the groups so that every prefix holds them in the final proportions."""
    keyed = []
    for group in groups:
        rng.shuffle(group)
        keyed += [((i + rng.random()) / len(group), item) for i, item in enumerate(group)]
    return [item for _, item in sorted(keyed, key=lambda k: k[0])]


def generate(seed=SEED):
    rng = random.Random(seed)
    seen = Counter()
    groups = [draw(rng, f"python-{face.__name__}", face, n, seen) for face, n in python_prompts.FACES]
    groups += [draw(rng, name, face, n, seen) for name, face, n in TEXT_FACES]
    return [{"id": f"prompt-{i:05d}", "source": source, "messages": [{"role": "user", "content": text}]} for i, (source, text) in enumerate(spread(rng, groups))]


def check(prompts, path):
    """Fail if a prompt shares eight words in a row, or a function name, with a task of the suite."""
    with gzip.open(path, "rt") as f:
        tasks = [json.loads(line) for line in f]
    split = lambda text: re.findall(r"\w+", text.lower())
    runs = {}
    for t in tasks:
        w = split(t["prompt"])
        for i in range(len(w) - 7):
            runs.setdefault(tuple(w[i:i + 8]), t["task_id"])
    names = {t["entry_point"]: t["task_id"] for t in tasks}
    bad = 0
    for p in prompts:
        text = p["messages"][0]["content"]
        w = split(text)
        hits = {runs[tuple(w[i:i + 8])] + ": " + " ".join(w[i:i + 8]) for i in range(len(w) - 7) if tuple(w[i:i + 8]) in runs}
        hits |= {f"{names[n]}: function name {n}" for n in re.findall(r"def (\w+)", text) if n in names}
        for h in hits:
            bad += 1
            print(f"{p['id']} ({p['source']}): {h}", file=sys.stderr)
    print(f"{len(prompts)} prompts checked against {len(tasks)} tasks: {bad} overlaps", file=sys.stderr)
    return bad == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(ROOT, "assets", "prompts", "train.jsonl"))
    parser.add_argument("--check", metavar="HumanEval.jsonl.gz")
    args = parser.parse_args()
    prompts = generate()
    with open(args.out, "w", encoding="utf-8", newline="\n") as f:
        for p in prompts:
            f.write(json.dumps(p, ensure_ascii=False) + "\n")
    for source, n in sorted(Counter(p["source"] for p in prompts).items()):
        print(f"{n:5d} {source}", file=sys.stderr)
    if args.check and not check(prompts, args.check):
        sys.exit(1)


if __name__ == "__main__":
    main()
