"""Tasks put together from a condition, a change and a summary: thousands of different small functions.

Every piece is (Python expression, words). The words make the docstring, the expressions make a solution that is run to
compute the examples, so an example can never be wrong.
"""
from words import COLOURS, FRUIT, NAMES, TEAMS, ints, matrix, scores, sentence, words
from task import Task


def int_condition(r):
    """A condition on the integer x: expression, phrase for the numbers it keeps, name part."""
    k, d = r.randint(2, 9), r.randint(0, 9)
    low = r.randint(-3, 5)
    high = low + r.randint(4, 12)
    return r.choice([
        ("x % 2 == 0", "even", "even"), ("x % 2 != 0", "odd", "odd"),
        ("x > 0", "positive", "positive"), ("x < 0", "negative", "negative"), ("x != 0", "non-zero", "nonzero"),
        (f"x % {k} == 0", f"divisible by {k}", f"multiples_of_{k}"),
        (f"x % {k} != 0", f"not divisible by {k}", f"non_multiples_of_{k}"),
        (f"x > {k}", f"greater than {k}", f"above_{k}"), (f"x < {k}", f"smaller than {k}", f"under_{k}"),
        (f"x >= {k}", f"at least {k}", f"at_least_{k}"), (f"x <= {k}", f"at most {k}", f"at_most_{k}"),
        (f"{low} <= x <= {high}", f"between {low} and {high} (both included)", "in_range"),
        (f"abs(x) % 10 == {d}", f"ending in the digit {d}", f"ending_in_{d}"),
        ("x >= 0 and round(x ** 0.5) ** 2 == x", "perfect squares", "squares"),
        ("10 <= abs(x) <= 99", "made of exactly two digits", "two_digit"),
        ("sum(int(c) for c in str(abs(x))) % 2 == 0", "whose digit sum is even", "even_digit_sum"),
        ("str(abs(x)) == str(abs(x))[::-1]", "that read the same backwards (sign ignored)", "mirror"),
        ("x > 0 and x & (x - 1) == 0", "powers of two", "powers_of_two"),
        ("len(set(str(abs(x)))) == len(str(abs(x)))", "without a repeated digit", "distinct_digit"),
        (f"'{d}' in str(x)", f"containing the digit {d}", f"with_digit_{d}"),
        (f"x % {k} == 1", f"that leave remainder 1 when divided by {k}", "remainder_one"),
        (f"abs(x) < {k + 3}", f"with an absolute value below {k + 3}", "near_zero"),
    ])


def int_change(r):
    """A change of the integer x: expression, words, name part."""
    k = r.randint(2, 9)
    return r.choice([
        ("x", "", ""), ("x", "", ""), ("x * x", "the squares of", "squared"), ("x ** 3", "the cubes of", "cubed"),
        ("abs(x)", "the absolute values of", "absolute"), ("2 * x", "twice the value of", "doubled"),
        (f"x + {k}", f"the values, increased by {k}, of", "raised"), (f"x - {k}", f"the values, lowered by {k}, of", "lowered"),
        ("-x", "the negated values of", "negated"), (f"x % {k}", f"the remainders modulo {k} of", f"mod_{k}"),
        (f"x // {k}", f"the floor quotients by {k} of", f"floor_div_{k}"), (f"{k} * x", f"{k} times the value of", f"times_{k}"),
        ("sum(int(c) for c in str(abs(x)))", "the digit sums of", "digit_sum"),
        ("len(str(abs(x)))", "the number of digits of", "digit_count"), ("abs(x) % 10", "the last digits of", "last_digit"),
        ("bin(abs(x)).count('1')", "the number of one bits (sign ignored) of", "bit_count"),
        ("x * (x + 1) // 2", "the triangular numbers n * (n + 1) / 2 for", "triangular"),
    ])


INT_SUMMARY = [
    ("sum({g})", "int", "Return the sum of {what}.", "sum", "The sum of nothing is 0."),
    ("math.prod({g})", "int", "Return the product of {what}.", "product", "An empty product is 1."),
    ("max({g}, default=0)", "int", "Return the largest of {what}, or 0 if there are none.", "largest", ""),
    ("min({g}, default=0)", "int", "Return the smallest of {what}, or 0 if there are none.", "smallest", ""),
    ("max({g}, default=None)", "Optional[int]", "Find the maximum of {what}. Return None if no such number exists.", "max", ""),
    ("[{e}]", "List[int]", "Return a list of {what}, in the original order.", "list", ""),
    ("[{e}]", "List[int]", "Collect {what} into a new list. The input must not be changed.", "collect", ""),
    ("sorted({g})", "List[int]", "Return {what} in ascending order.", "sorted", ""),
    ("sorted([{e}], reverse=True)", "List[int]", "Return {what}, sorted from largest to smallest.", "descending", ""),
    ("sorted(set({g}))", "List[int]", "Return {what} without duplicates, sorted in increasing order.", "distinct", ""),
    ("len(set({g}))", "int", "Count how many different values occur among {what}.", "count_distinct", ""),
    ("next(({e}), 0)", "int", "Look at {what} and return the first one. If there is none, return 0.", "first", ""),
    ("list(itertools.accumulate({g}))", "List[int]", "Return the running totals of {what}.", "running_totals", ""),
    ("', '.join(str(y) for y in [{e}])", "str", "Write {what} as one string, separated by a comma and a space.", "join", ""),
    ("[{e}][::-1]", "List[int]", "Return {what} in reverse order.", "reversed", ""),
    ("[{e}][:3]", "List[int]", "Return at most the first three of {what}.", "first_three", ""),
    ("(len([{e}]), sum({g}))", "Tuple[int, int]", "Return a pair: how many there are of {what}, and their total.", "count_and_total", ""),
    ("dict(collections.Counter({g}))", "Dict[int, int]", "Count how often each value occurs among {what}.", "tally", ""),
    ("any(y > 10 for y in [{e}])", "bool", "Check whether any of {what} is greater than 10.", "any_large", ""),
    ("[(i, {t}) for i, x in enumerate({a}) if {c}]", "List[Tuple[int, int]]", "For {what}, return pairs of the original index and the value.", "indexed", ""),
]


def int_list_task(r):
    """A list of integers: keep some, change them, sum them up."""
    cond, kept, cname = int_condition(r)
    change, changed, tname = int_change(r)
    solution, ret, text, sname, note = r.choice(INT_SUMMARY)
    arg = r.choice(["numbers", "values", "nums", "data", "items", "xs", "lst", "readings", "arr", "sequence"])
    elements = r.choice(["numbers", "elements", "entries", "integers", "values"])
    relation = kept if kept.startswith(("that ", "whose ", "with", "ending", "containing", "made")) else r.choice(["that are ", "which are "]) + kept
    what = " ".join(filter(None, [changed, f"the {elements} in {arg} {relation}"]))
    e = f"{change} for x in {arg} if {cond}"
    body = "return " + solution.format(g=f"{e}" if solution.count("{g}") == 1 and ", default" not in solution and "(len" not in solution else f"({e})", e=e, a=arg, t=change, c=cond)
    doc = text.format(what=what) + (f" {note}" if note and r.random() < 0.6 else "")
    name = "_".join(filter(None, r.choice([[sname, tname, cname], [tname, cname, sname], [sname, "of", tname, cname], ["get", sname, tname, cname], [cname, sname]])))
    inputs = [(ints(r, -12, 40, 3, 7),) for _ in range(4)] + ([([],)] if r.random() < 0.35 else [])
    return Task("ints", name, [(arg, "List[int]")], ret, doc, body, inputs)


def word_condition(r):
    """A condition on the word w."""
    k = r.randint(3, 6)
    c = r.choice("abcdegklmnoprst")
    return r.choice([
        (f"len(w) > {k}", f"longer than {k} characters", "long"), (f"len(w) < {k + 1}", f"shorter than {k + 1} characters", "short"),
        (f"len(w) == {k}", f"exactly {k} letters long", f"of_length_{k}"), ("len(w) % 2 == 0", "of even length", "even_length"),
        (f"w.lower().startswith('{c}')", f"starting with the letter '{c}' (in any case)", f"starting_{c}"),
        (f"w.endswith('{c}')", f"ending in '{c}'", f"ending_{c}"), (f"'{c}' in w", f"containing '{c}'", f"with_{c}"),
        (f"'{c}' not in w", f"without the letter '{c}'", f"without_{c}"),
        ("w[:1].lower() in 'aeiou'", "beginning with a vowel", "vowel_start"), ("w == w[::-1]", "that are the same when reversed", "mirrored"),
        ("w[:1].isupper()", "starting with a capital letter", "capitalised"), ("w[:1].lower() == w[-1:].lower()", "whose first and last letters match", "matching_ends"),
        ("len(set(w)) == len(w)", "in which no letter repeats", "no_repeat"), ("len(set(w)) < len(w)", "in which some letter repeats", "repeating"),
        (f"w.count('{c}') == 1", f"with exactly one '{c}'", f"single_{c}"), (f"sum(ch in 'aeiou' for ch in w) >= {k - 2}", f"with at least {k - 2} vowels", "many_vowels"),
    ])


WORD_CHANGE = [
    ("w", "", ""), ("w", "", ""), ("w.upper()", "in upper case", "upper"), ("w[::-1]", "each reversed", "reversed"), ("w.capitalize()", "capitalised", "capital"),
    ("w[0]", "reduced to their first letter", "initials"), ("w[-1]", "reduced to their last letter", "last_letters"), ("len(w)", "replaced by their length", "lengths"),
    ("w[:2]", "cut to two letters", "prefixes"), ("w + w", "written twice", "twice"), ("w.replace('a', '*')", "with every 'a' replaced by '*'", "masked"),
    ("w + '!'", "with an exclamation mark added", "loud"), ("''.join(sorted(w))", "with their letters sorted", "sorted_letters"),
    ("(w, len(w))", "paired with their length", "with_length"), ("w[1:] + w[0]", "with the first letter moved to the end", "rotated"),
    ("''.join(ch for ch in w if ch not in 'aeiou')", "with the lower-case vowels removed", "no_vowels"),
    ("sum(ch in 'aeiou' for ch in w)", "replaced by their number of vowels", "vowel_counts"),
]
WORD_SUMMARY = [
    ("[{e}]", "list", "Return the {n} in {a} {c}{t}."), ("[{e}]", "list", "Go through {a} and keep only the {n} {c}{t}. The order stays the same."),
    ("sorted({g})", "list", "Return a sorted list of the {n} in {a} {c}{t}."), ("list(dict.fromkeys({g}))", "list", "Return the {n} in {a} {c}{t}, dropping repeats but keeping the first of each."),
    ("' '.join(str(y) for y in [{e}])", "str", "Join the {n} in {a} {c}{t} into one string with single spaces between them."),
    ("'-'.join(str(y) for y in [{e}])", "str", "Build one string of the {n} in {a} {c}{t}, separated by hyphens."),
    ("len([{e}])", "int", "Count the {n} in {a} {c}."), ("[{e}][::-1]", "list", "Return the {n} in {a} {c}{t}, last one first."),
    ("next({g}, None)", "Optional", "Return the first of the {n} in {a} {c}{t}. Return None when there is no such word."),
    ("{{w: {x} for w in {a} if {k}}}", "dict", "Return a dictionary whose keys are the {n} in {a} {c} and whose values are the same {n}{t}."),
    ("max((w for w in {a} if {k}), key=len, default='')", "str", "Return the longest of the {n} in {a} {c}. Of several, the first wins; if none fits, return the empty string."),
    ("min((w for w in {a} if {k}), key=len, default='')", "str", "Return the shortest of the {n} in {a} {c}. The earliest wins a tie. Without any, return ''."),
    ("[i for i, w in enumerate({a}) if {k}]", "List[int]", "Return the positions (counted from 0) of the {n} in {a} {c}."),
    ("sum(len(w) for w in {a} if {k})", "int", "Return the total number of characters in the {n} of {a} {c}."),
    ("all({k} for w in {a})", "bool", "Return True if {a} holds only {n} {c}, else False."),
]


def word_list_task(r):
    """A list of words, or a sentence that is split first."""
    cond, kept, cname = word_condition(r)
    change, changed, tname = r.choice(WORD_CHANGE)
    solution, ret, text = r.choice(WORD_SUMMARY)
    as_text = r.random() < 0.35
    arg = r.choice(["text", "sentence", "line", "phrase", "s"] if as_text else ["words", "strings", "tokens", "names", "items", "labels"])
    over = f"{arg}.split()" if as_text else arg
    e = f"{change} for w in {over} if {cond}"
    body = "return " + solution.format(e=e, g=f"({e})", a=over, x=change, k=cond)
    kind = "int" if change.startswith(("len", "sum")) else "Tuple[str, int]" if change.startswith("(w,") else "str"
    ret = {"list": f"List[{kind}]", "Optional": f"Optional[{kind}]", "dict": f"Dict[str, {kind}]"}.get(ret, ret)
    noun = r.choice(["words", "words", "strings"]) if not as_text else "words"
    tname = tname if "{t}" in text else ""
    doc = text.format(n=noun, a=arg, c=kept, t=f", {changed}" if changed else "")
    if as_text:
        doc = r.choice([f"{arg} holds words separated by spaces. ", f"Split {arg} at whitespace. ", ""]) + doc
    verb = r.choice(["select", "find", "pick", "get", "filter", "collect", "extract"])
    name = "_".join(filter(None, r.choice([[verb, cname, tname], [cname, "words", tname], [tname or verb, cname, "words"], [verb, "words", cname]])))
    inputs = [(sentence(r),) if as_text else (words(r, 3, 6),) for _ in range(4)]
    return Task("words", name, [(arg, "str" if as_text else "List[str]")], ret, doc, body, inputs)


def char_task(r):
    """One string, letter by letter."""
    c, d = r.sample("aeiostrnlm", 2)
    k = r.randint(2, 4)
    test, kept = r.choice([
        ("ch in 'aeiou'", "lower-case vowels"), ("ch.isalpha() and ch.lower() not in 'aeiou'", "consonants"), ("ch.isdigit()", "digits"), ("ch.isupper()", "upper-case letters"),
        (f"ch in '{c}{d}'", f"letters '{c}' and '{d}'"), ("not ch.isalnum()", "characters that are neither letters nor digits"), ("ch == ' '", "spaces"),
        ("ch > 'm'", "characters that come after 'm'"), ("text.count(ch) == 1", "characters that occur only once"), ("text.count(ch) > 1", "characters that occur more than once"),
    ])
    body, ret, doc, stem = r.choice([
        ("return ''.join(ch for ch in text if not (T))", "str", "Remove all K from text.", "strip"), ("return ''.join(ch for ch in text if T)", "str", "Keep only the K of text.", "keep"),
        ("return sum(1 for ch in text if T)", "int", "Return how many K are in text.", "count"), ("return ''.join('#' if T else ch for ch in text)", "str", "Replace the K of text by '#'.", "hide"),
        ("return [i for i, ch in enumerate(text) if T]", "List[int]", "Return the indices of the K in text.", "locate"), ("return ''.join(ch * N if T else ch for ch in text)", "str", "Repeat the K of text N times; all other characters stay single.", "stretch"),
        ("return ''.join(ch.upper() if T else ch for ch in text)", "str", "Turn the K of text into upper case and leave the rest alone.", "shout"), ("return sorted(set(ch for ch in text if T))", "List[str]", "Return the different K found in text, sorted.", "distinct"),
        ("return ''.join(ch for ch in text if T) + ''.join(ch for ch in text if not (T))", "str", "Move the K of text to the front. Both groups keep their order.", "front"),
        ("return max((i for i, ch in enumerate(text) if T), default=-1)", "int", "Return the last position of any of the K in text, or -1.", "last"),
        ("return {ch: text.count(ch) for ch in text if T}", "Dict[str, int]", "Count each of the K in text.", "tally"),
        ("found = [ch for ch in text if T]\nreturn len(found) * 2 > len(text)", "bool", "Return True when more than half of text is made of K.", "mostly"),
    ])
    arg = r.choice(["text", "s", "string", "line", "message", "word"])
    body = body.replace("if not (T)", f"if not ({test})").replace("if T", f"if {test}").replace("* N", f"* {k}").replace("text", arg)
    doc = doc.replace(" K ", f" {kept} ").replace(" K.", f" {kept}.").replace(" N ", f" {k} ").replace(" text", f" {arg}")
    label = kept.split("'")[0].strip().replace("-", "_").split(" that ")[0].replace(" ", "_")
    name = r.choice([f"{stem}_{label}", f"{stem}_{label}_in_{arg}", f"{label}_{stem}", f"{stem}_chars"])
    inputs = [(r.choice([sentence(r), "".join(r.sample("abcXYZ019 -eio", 8)), r.choice(words(r)) + str(r.randint(1, 99)), f"Room {r.randint(1, 40)}B, {r.choice(NAMES)}"]),) for _ in range(4)]
    return Task("chars", name, [(arg, "str")], ret, doc, body, inputs)


def dict_task(r):
    """A dictionary from a name to a number."""
    cond, kept, cname = int_condition(r)
    cond = cond.replace("x", "v") if "max" not in cond else cond
    arg, key, val = r.choice([("stock", "item", "count"), ("scores", "player", "score"), ("prices", "product", "price"), ("ages", "person", "age"), ("votes", "candidate", "number of votes"), ("distances", "city", "distance"), ("grades", "student", "grade")])
    rel = kept if kept.startswith(("that ", "whose ", "with", "ending", "containing", "made")) else f"that is {kept}".replace("perfect squares", "a perfect square").replace("powers of two", "a power of two")
    rel = rel.replace("that read", "that reads").replace("that leave", "that leaves")
    k = r.randint(1, 3)
    f = f"for k, v in {arg}.items() if {cond}"
    body, ret, doc, stem = r.choice([
        (f"return {{k: v {f}}}", "Dict[str, int]", f"Return a new dictionary with only the entries of {arg} that have a {val} {rel}.", "filter"),
        (f"return sorted(k {f})", "List[str]", f"Return, in alphabetical order, every {key} in {arg} with a {val} {rel}.", "names"),
        (f"return sum(v {f})", "int", f"Add up the {val} of every {key} in {arg}, but only where it is a {val} {rel}.", "total"),
        (f"return {{v: k {f}}}", "Dict[int, str]", f"Swap keys and values of {arg}, keeping only entries with a {val} {rel}. If two entries share a value, the later one wins.", "invert"),
        (f"return sorted(((k, v) {f}), key=lambda pair: (-pair[1], pair[0]))[:{k}]", "List[Tuple[str, int]]", f"Among the entries of {arg} with a {val} {rel}, return the {k} highest as (key, value) pairs, ties in alphabetical order.", f"top_{k}"),
        (f"return {{k: v + {k} if {cond} else v for k, v in {arg}.items()}}", "Dict[str, int]", f"Add {k} to each {val} in {arg} {rel}; other entries are copied as they are.", "adjust"),
        (f"return len([k {f}])", "int", f"How many entries of {arg} have a {val} {rel}?", "count"),
        (f"return {{k.upper(): v {f}}}", "Dict[str, int]", f"Return a copy of {arg} with upper-case keys that holds only entries with a {val} {rel}.", "upper"),
        (f"return max(((v, k) {f}), default=(0, ''))[1]", "str", f"Return the {key} with the largest {val} among those entries of {arg} with a {val} {rel}. Return '' if there is none.", "best"),
    ])
    name = r.choice([f"{stem}_{arg}", f"{stem}_{cname}_{arg}", f"{arg}_{stem}_{cname}", f"{stem}_{key}s_{cname}"])
    return Task("dicts", name, [(arg, "Dict[str, int]")], ret, doc, body, [(scores(r, 0, 60),) for _ in range(4)])


def record_task(r):
    """A list of dictionaries or tuples, as read from a table."""
    label, num, group, groups = r.choice([("name", "age", "team", TEAMS), ("title", "pages", "shelf", COLOURS), ("item", "price", "category", ["food", "tools", "toys"]), ("city", "visitors", "country", ["Peru", "Italy", "Ghana"]), ("task", "minutes", "owner", NAMES[:6])])
    limit = r.randint(5, 40)
    which = r.choice(groups)
    arg = r.choice(["rows", "records", "entries", "table", "items"])
    pool = NAMES if label == "name" else FRUIT
    body, ret, doc, stem = r.choice([
        (f"return [row['{label}'] for row in {arg} if row['{num}'] > {limit}]", "List[str]", f"Return the '{label}' of every record whose '{num}' is greater than {limit}.", f"{label}s_over_{limit}"),
        (f"totals = {{}}\nfor row in {arg}:\n    totals[row['{group}']] = totals.get(row['{group}'], 0) + row['{num}']\nreturn totals", "Dict[str, int]", f"Add up '{num}' separately for each '{group}'.", f"{num}_by_{group}"),
        (f"return [row['{label}'] for row in sorted({arg}, key=lambda row: row['{num}'])]", "List[str]", f"Return the '{label}' of all records, ordered by '{num}' from low to high.", f"order_by_{num}"),
        (f"groups = {{}}\nfor row in {arg}:\n    groups.setdefault(row['{group}'], []).append(row['{label}'])\nreturn groups", "Dict[str, List[str]]", f"Group the records by '{group}'. Each group is a list of the '{label}' values in input order.", f"group_by_{group}"),
        (f"return sum(row['{num}'] for row in {arg} if row['{group}'] == '{which}')", "int", f"Return the total '{num}' of the records whose '{group}' is '{which}'.", f"total_{num}_{which}".lower()),
        (f"if not {arg}:\n    return None\nreturn max({arg}, key=lambda row: row['{num}'])['{label}']", "Optional[str]", f"Return the '{label}' of the record with the highest '{num}', or None if there are no records.", f"highest_{num}"),
        (f"counts = {{}}\nfor row in {arg}:\n    counts[row['{group}']] = counts.get(row['{group}'], 0) + 1\nreturn counts", "Dict[str, int]", f"Count the records of each '{group}'.", f"count_per_{group}"),
        (f"return [{{**row, '{num}': row['{num}'] + {limit}}} for row in {arg}]", "List[dict]", f"Return copies of the records in which '{num}' is {limit} larger. The originals must stay as they are.", f"raise_{num}"),
    ])
    make = lambda: [{label: n, num: r.randint(1, 60), group: r.choice(groups)} for n in r.sample(pool, r.randint(2, 3))]
    return Task("records", r.choice([stem, stem + "_" + arg, "get_" + stem, "find_" + stem]), [(arg, "List[dict]")], ret, f"Each record is a dictionary with the keys '{label}', '{num}' and '{group}'. {doc}" if r.random() < .7 else doc, body, [(make(),) for _ in range(3)])


def matrix_task(r):
    """A matrix given as a list of rows: one value a row or column, or one for the whole."""
    cond, kept, cname = int_condition(r)
    inner, words_, short = r.choice([("sum({l})", "sum", "sums"), ("max({l})", "largest entry", "maxima"), ("min({l})", "smallest entry", "minima"), ("max({l}) - min({l})", "difference between the largest and the smallest entry", "spreads"), ("len(set({l}))", "number of different entries", "distinct"), ("sum(1 for x in {l} if COND)", f"number of entries {kept}", "counts"), ("sorted({l})", "entries in ascending order", "sorted"), ("{l}[-1]", "last entry", "last"), ("sum(x for x in {l} if COND)", f"sum of the entries {kept}", "filtered_sums")])
    inner = inner.replace("COND", cond)
    along = r.choice(["row", "column"])
    arg = r.choice(["matrix", "grid", "rows", "table", "m"])
    src, var = (arg, "row") if along == "row" else (f"zip(*{arg})", "col")
    kind = "List[int]" if short == "sorted" else "int"
    pick = r.choice([("[{i} for {v} in {s}]", f"List[{kind}]", "For every {al} of {a}, compute the {w}. Return the results as a list."), ("max({i} for {v} in {s})", kind, "Return the greatest value of this kind over all {al}s of {a}: the {w} of the {al}."), ("{{n: {i} for n, {v} in enumerate({s})}}", f"Dict[int, {kind}]", "Map the index of each {al} of {a} to the {w} of that {al}."), ("min(enumerate({s}), key=lambda p: {j})[0]", "int", "Return the index of the {al} of {a} where the {w} is smallest (the first such {al}).")])
    body = "return " + pick[0].format(i=inner.format(l=var), v=var, s=src, j=inner.format(l="p[1]"))
    doc = r.choice(["", f"{arg} is a list of rows of equal length. ", f"The rectangular {arg} is given as a list of lists. "]) + pick[2].format(al=along, a=arg, w=words_)
    return Task("matrix", r.choice([f"{along}_{short}", f"{short}_by_{along}", f"{arg}_{along}_{short}", f"{along}_{short}_{cname}"]), [(arg, "List[List[int]]")], pick[1], doc, body, [(matrix(r),) for _ in range(3)])


def pair_task(r):
    """Two lists walked together, or one list seen through a window of neighbours."""
    op, words_, n = r.choice([("x + y", "sum", "sums"), ("x - y", "difference (first minus second)", "differences"), ("x * y", "product", "products"), ("max(x, y)", "larger one", "maxima"), ("min(x, y)", "smaller one", "minima"), ("abs(x - y)", "absolute difference", "gaps"), ("x == y", "truth of their being equal", "equal"), ("(x + y) / 2", "mean", "means"), ("x * 10 + y", "number 10 * first + second", "merged")])
    kind = {"x == y": "bool", "(x + y) / 2": "float"}.get(op, "int")
    one = r.random() < 0.5
    a, b = r.choice([("a", "b"), ("left", "right"), ("first", "second"), ("xs", "ys"), ("old", "new")])
    src = f"zip({a}, {a}[1:])" if one else f"zip({a}, {b})"
    who = f"each pair of neighbours in {a}" if one else f"each position of {a} and {b}"
    pick = r.choice([("[{o} for x, y in {s}]", f"List[{kind}]", "For {w}, compute the {n}. Return all results in order."), ("sum({o} for x, y in {s})", "float" if kind == "float" else "int", "Add up, over {w}, the {n}."), ("max(({o} for x, y in {s}), default=0)", kind, "Over {w}, find the greatest {n}. Return 0 if there are no pairs."), ("[i for i, (x, y) in enumerate({s}) if ({o}) > 5]", "List[int]", "Return the indices i where, for {w}, the {n} is more than 5.")])
    doc = pick[2].format(w=who, n=words_) + ("" if one else r.choice([" The longer list is cut to the length of the shorter one.", " Extra elements are ignored.", ""]))
    args = [(a, "List[int]")] if one else [(a, "List[int]"), (b, "List[int]")]
    inputs = [tuple(ints(r, 0, 12, 3, 5) for _ in args) for _ in range(4)]
    return Task("pairs", r.choice([f"pair_{n}", f"neighbour_{n}" if one else f"zip_{n}", f"{n}_of_{a}", f"elementwise_{n}" if not one else f"step_{n}"]), args, pick[1], doc, "return " + pick[0].format(o=op, s=src), inputs)


FAMILIES = [(int_list_task, 4), (word_list_task, 4), (char_task, 3), (dict_task, 2), (record_task, 2), (matrix_task, 1.5), (pair_task, 1)]
