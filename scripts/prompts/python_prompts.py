"""The faces of a programming task: complete it, write it, explain it, repair it, document it, test it."""
import re
import textwrap

from compose import FAMILIES
from hand_tasks import hand_task

COMPLETE = [
    "Complete this Python function:", "Complete the following Python function.", "Write the body of this function:", "Write a solution to this problem:", "Implement the following function in Python:",
    "Please complete the code below.", "Solve this programming problem in Python. Return the complete function.", "Finish the function so that the examples in its docstring hold:",
    "Write a Python solution to the problem below and make sure that all of its examples pass:", "Here is a function signature with a docstring. Write the implementation:", "Fill in the missing code:",
    "Implement this:", "Write code that does what the docstring says and passes its tests:", "Continue this Python code:", "Solve the task that is described in the docstring:", "Provide a correct and complete solution to this coding problem:",
    "The tests of the following function must pass. Write it:", "Write a solution for the following Python task:", "Read the docstring, then write the function:", "Can you complete this function?",
    "I need the implementation of this function:", "Give me the full code of this function:", "Write an efficient solution for this function:", "Work out the following coding exercise:", "Your task is to complete this function. Answer with Python code:",
]
AFTER = ["", "", "", "", "\nExplain your solution briefly.", "\nOnly answer with code.", "\nReturn the whole function.", "\nThe function must handle all examples.", "\nKeep it short.", "\nPut the answer in a Python code block."]
HELPERS = [
    "def is_even(n: int) -> bool:\n    return n % 2 == 0\n\n\n", "def square(n: float) -> float:\n    return n * n\n\n\n", "def first_or_none(items: list):\n    return items[0] if items else None\n\n\n",
    "def clean(text: str) -> str:\n    return text.strip().lower()\n\n\n", "def is_vowel(letter: str) -> bool:\n    return letter.lower() in 'aeiou'\n\n\n",
]


def any_task(r):
    """A task of a random family, with at least two examples."""
    while True:
        make = hand_task if r.random() < 0.5 else r.choices([f for f, _ in FAMILIES], [w for _, w in FAMILIES])[0]
        task = make(r)
        examples = task.run()
        if len(examples) >= 2:
            # Results that differ say more than results that are equal.
            values = [value for _, value in examples]
            first = [values.index(value) == i for i, value in enumerate(values)]
            plain = [value in ("0", "[]", "{}", "''", "None") for value in values]
            examples = [e for _, e in sorted(zip(zip([not f for f in first], plain), examples), key=lambda pair: pair[0])]
            return task, examples


def indent(text):
    return textwrap.indent(text, "    ")


def docstring(r, task, examples):
    """The docstring in one of the usual layouts, examples included."""
    doc = r.choice([task.doc, task.doc, task.doc, task.doc[0].lower() + task.doc[1:]])
    doc = re.sub(r"^Return ", r.choice(["Return ", "Return ", "Returns ", "Compute and return ", "This function should return "]), doc)
    if r.random() < 0.5 and len(doc) > 80:
        doc = textwrap.fill(doc, r.choice([68, 76, 88]), break_long_words=False, break_on_hyphens=False)
    quote = r.choice(['"""', '"""', '"""', "'''"])
    if quote == "'''" and "'''" in doc:
        quote = '"""'
    style = r.random()
    shown = examples[:r.choice([1, 2, 2, 3, 3, 4])]
    if style < 0.62:
        lines = "\n".join(f">>> {c}\n{v}" for c, v in shown)
        title = r.choice(["", "", "", "\nExamples:", "\nExample:", "\nFor example:"])
        tail = (title + "\n" if title else r.choice(["\n", ""])) + lines
    elif style < 0.74:
        tail = "\n" + r.choice(["Examples:\n", "Example:\n", "For example:\n", ""]) + "\n".join(f"{c} {r.choice(['==', '->', '=>', '➞'][:3])} {v}" for c, v in shown)
    elif style < 0.84:
        tail = "\n" + "\n".join(f"For {c.split('(', 1)[1][:-1]} the result is {v}." for c, v in shown)
    elif style < 0.92:
        args = "\n".join(f"    {n} ({t}): the {n.replace('_', ' ').strip()}" for n, t in task.args)
        tail = f"\nArgs:\n{args}\n\nReturns:\n    {task.returns}\n" + (f"\n>>> {shown[0][0]}\n{shown[0][1]}" if r.random() < 0.6 else "")
    else:
        tail = ""
    head = r.choice([quote, quote, quote + " ", quote + "\n"])
    text = doc + ("\n" + tail if tail else "")
    return head + text + ("\n" + quote if tail or head.endswith("\n") else quote)


def stub(r, task, examples):
    """Imports, signature and docstring: the shape of most code benchmarks and of real code to be completed."""
    typed = r.random() < 0.85
    modern = typed and r.random() < 0.3
    imports = task.imports(modern) if typed else ""
    if r.random() < 0.12:
        imports = r.choice(["import math\n", "import re\n", "import itertools\n", "from collections import Counter\n"]) + (imports or "\n\n")
    helper = r.choice(HELPERS) if r.random() < 0.08 else ""
    code = imports + helper + task.signature(typed, modern) + "\n" + indent(docstring(r, task, examples)) + "\n"
    code = "\n".join(line.rstrip() for line in code.split("\n"))
    return code if r.random() < 0.7 else code.rstrip("\n") + r.choice(["\n", "\n    pass\n", "\n    ...\n", "\n    # your code here\n"])


def complete(r):
    task, examples = any_task(r)
    code = stub(r, task, examples)
    intro = r.choice(COMPLETE)
    fence = r.random()
    if fence < 0.9:
        return task, f"{intro}\n{r.choice(['', '', chr(10)])}```python\n{code}```{r.choice(AFTER)}"
    return task, f"{intro}\n\n{code}".rstrip()


def write(r):
    task, examples = any_task(r)
    call, value = examples[0]
    args = ", ".join(f"`{n}`" for n, _ in task.args)
    sentence = task.doc
    ask = r.choice([
        f"Write a Python function `{task.name}` that takes {args}. {sentence}", f"Write a Python function for this task: {sentence} Call it `{task.name}`.", f"Implement `{task.name}({', '.join(n for n, _ in task.args)})` in Python. {sentence}",
        f"In Python: {sentence} The function is named `{task.name}`.", f"I need a function `{task.name}` in Python with the parameters {args}. {sentence}", f"Write Python code for the following. {sentence}",
        f"Define a function `{task.name}`. {sentence} Use type hints.", f"Write a function {task.name} in Python. {sentence} Add a docstring.", f"Write a short Python function and show how to call it. {sentence}",
        f"How would you write this in Python? {sentence}", f"Create a Python function called {task.name} that works like this: {sentence}", f"Solve in Python: {sentence}",
    ])
    tests = "\n".join(f"assert {c} == {v}" for c, v in examples[:3])
    return task, ask + r.choice(["", "", f" For example, `{call}` should return `{value}`.", f"\n\nExample: {call} returns {value}", f"\n\nYour code should pass these tests:\n```python\n{tests}\n```", " Explain how it works."])


def explain(r):
    task, examples = any_task(r)
    code = task.source(typed=r.random() < 0.5)
    call = examples[0][0]
    return task, r.choice([
        f"Explain what this Python function does:\n\n```python\n{code}\n```", f"What does the following code return for `{call}`? Go through it step by step.\n\n```python\n{code}\n```", f"Explain this code line by line:\n```python\n{code}\n```",
        f"Read this function and describe its purpose in two sentences.\n\n```python\n{code}\n```", f"What is the time complexity of this function, and why?\n\n```python\n{code}\n```", f"Suggest a better name for this function and say why:\n\n```python\n{re.sub(re.escape(task.name), 'mystery', code)}\n```",
        f"How does this Python code work?\n\n```python\n{code}\n```", f"Explain to a beginner what happens in this function:\n```python\n{code}\n```", f"What are the edge cases of this function?\n\n```python\n{code}\n```",
    ])


def break_code(r, code):
    """The code with one typical mistake, or None if none fits."""
    edits = [(r"<=", "<"), (r">=", ">"), (r"(?<![=<>!])<(?![=<])", ">"), (r" \+ 1\b", ""), (r" - 1\b", ""), (r"\+= ", "-= "), (r" == ", " != "), (r" and ", " or "), (r"return (?=\w)", "print("), (r" % 2\b", " % 3"), (r":\n", "\n"), (r"= 0\n", "= 1\n"),
             (r"\bnot ", ""), (r"\.append\(", ".add("), (r"\[1:\]", "[:1]"), (r"range\(1, ", "range("), (r"\bmax\(", "min("), (r"\bmin\(", "max("), (r" in ", " on "), (r"\bsorted\(", "sort("), (r"\[::-1\]", "[::1]"), (r" if ", " of "), (r"\.items\(\)", ""), (r"return ", ""), (r"\]$", ""), (r"\.lower\(\)", ".lower"), (r"' '\.join", "''.join"), (r", default=[^)]*\)", ")")]
    head, body = code.split("\n", 1)
    r.shuffle(edits)
    for pattern, new in edits:
        hits = list(re.finditer(pattern, body))
        if hits:
            hit = r.choice(hits)
            text = new
            out = body[:hit.start()] + text + body[hit.end():]
            if new == "print(":
                end = out.find("\n", hit.start())
                out = out[:end] + ")" + out[end:] if end >= 0 else out + ")"
            if out != body:
                return head + "\n" + out
    return None


def repair(r):
    while True:
        task, examples = any_task(r)
        code = task.source(typed=r.random() < 0.4, doc=task.doc if r.random() < 0.5 else None)
        broken = break_code(r, code)
        if broken:
            break
    call, value = examples[0]
    return task, r.choice([
        f"This function has a bug. Find and fix it:\n\n```python\n{broken}\n```\n\n`{call}` should return `{value}`.", f"Fix the bug in this Python code:\n\n```python\n{broken}\n```", f"The following code does not work. {task.doc} Correct it:\n```python\n{broken}\n```",
        f"Why does this code give a wrong result for `{call}`? Write a corrected version.\n\n```python\n{broken}\n```", f"Debug this function. Expected: {call} == {value}\n\n```python\n{broken}\n```", f"My function should do this: {task.doc} Something is wrong with it. Please help.\n\n```python\n{broken}\n```",
        f"Correct this code so that it passes the test.\n\n```python\n{broken}\n\nassert {call} == {value}\n```",
    ])


def document(r):
    task, _ = any_task(r)
    code = task.source(typed=r.random() < 0.5)
    return task, r.choice([
        f"Add a docstring to this function:\n\n```python\n{code}\n```", f"Write a docstring with an example for this Python function:\n\n```python\n{code}\n```", f"Add comments to this code:\n\n```python\n{code}\n```", f"Add type hints and a docstring:\n\n```python\n{code}\n```",
        f"Document this function in the Google style.\n\n```python\n{code}\n```", f"Write a one-line summary for this function, then the function with its docstring.\n```python\n{code}\n```",
    ])


def test(r):
    task, examples = any_task(r)
    code = task.source(typed=r.random() < 0.5)
    call, value = examples[0]
    return task, r.choice([
        f"Write unit tests for this function:\n\n```python\n{code}\n```", f"Write pytest tests for the function below. One case is `{call} == {value}`.\n\n```python\n{code}\n```", f"Write three assert statements that test `{task.name}`:\n\n```python\n{code}\n```",
        f"Write a unittest.TestCase for this code:\n```python\n{code}\n```", f"Which inputs would you test this function with? Write the tests.\n\n```python\n{code}\n```",
    ])


def improve(r):
    task, _ = any_task(r)
    code = task.source()
    return task, r.choice([
        f"Rewrite this function in a more readable way:\n\n```python\n{code}\n```", f"Rewrite this Python function without using a comprehension:\n\n```python\n{code}\n```", f"Make this function shorter:\n\n```python\n{code}\n```", f"Refactor this code and explain your changes:\n```python\n{code}\n```",
        f"Make this function raise a ValueError when its input is not valid:\n\n```python\n{code}\n```", f"Translate this Python function to JavaScript:\n\n```python\n{code}\n```", f"Rewrite this function as a generator:\n\n```python\n{code}\n```", f"Write a recursive version of this function:\n\n```python\n{code}\n```",
        f"Write a class with a method `{task.name}` that does the same as this function:\n\n```python\n{code}\n```", f"Rename the variables of this code so that it is easier to understand:\n\n```python\n{code}\n```",
    ])


FIELDS = [("name", "str"), ("balance", "float"), ("count", "int"), ("items", "list"), ("limit", "int"), ("colour", "str"), ("speed", "float"), ("owner", "str"), ("level", "int"), ("tags", "list"), ("year", "int"), ("width", "float"), ("height", "float"), ("price", "float")]
THINGS = "Account Book Lamp Playlist Robot Car Inventory Counter Timer Player Garden Library Elevator Thermometer Shop Recipe Ticket Queue Matrix Wallet Train Parcel Clock Calendar Student Order".split()
METHODS = [("reset", "Set all numbers back to zero."), ("describe", "Return one line that describes the object."), ("to_dict", "Return the fields as a dictionary."), ("is_empty", "Return True if nothing is stored."), ("copy", "Return an independent copy."), ("add_item", "Add an item and return the new number of items."), ("remove_item", "Remove an item; raise KeyError if it is missing."), ("increase", "Add the given amount; negative amounts are refused."), ("compare_with", "Return -1, 0 or 1, like comparing two numbers."), ("total", "Return the total of all stored values."), ("history", "Return all earlier values, oldest first."), ("undo", "Take back the last change.")]


def classes(r):
    thing, fields, methods = r.choice(THINGS), r.sample(FIELDS, r.randint(2, 3)), r.sample(METHODS, r.randint(2, 3))
    init = ", ".join(f"{n}: {t}" for n, t in fields)
    body = "\n\n".join(f'    def {n}(self):\n        """{d}"""' for n, d in methods)
    code = f"class {thing}:\n    def __init__(self, {init}):\n" + "\n".join(f"        self.{n} = {n}" for n, _ in fields) + f"\n\n{body}\n"
    names = ", ".join(f"`{n}`" for n, _ in fields)
    return None, r.choice([
        f"{r.choice(['Complete this class', 'Fill in the methods of this class', 'Implement the missing methods', 'Finish this Python class'])}:\n\n```python\n{code}```",
        f"Write a Python class `{thing}` with the attributes {names} and a method `{methods[0][0]}`: {methods[0][1]}", f"Write a dataclass `{thing}` with {', '.join(f'{n} ({t})' for n, t in fields)}. It also has `{methods[1][0]}`: {methods[1][1]}",
    ])


FACES = [(complete, 1700), (write, 330), (explain, 130), (repair, 200), (document, 100), (test, 100), (improve, 90), (classes, 50)]
