"""A programming task: signature, description, a solution that is run for the examples, and its faces as a prompt."""
import collections
import datetime
import functools
import itertools
import math
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

SCOPE = dict(collections=collections, datetime=datetime, functools=functools, itertools=itertools, math=math, re=re,
             Any=Any, Callable=Callable, Dict=Dict, List=List, Optional=Optional, Set=Set, Tuple=Tuple, Union=Union)


@dataclass
class Task:
    family: str
    name: str
    args: list  # (name, type)
    returns: str
    doc: str
    body: str
    inputs: list = field(default_factory=list)

    def __post_init__(self):
        self.name = re.sub(r"_+", "_", self.name).strip("_")

    def signature(self, typed=True, modern=False):
        def spell(t):
            return re.sub(r"Optional\[(.*)\]", r"\1 | None", t).replace("List[", "list[").replace("Dict[", "dict[").replace("Tuple[", "tuple[").replace("Set[", "set[") if modern else t
        args = ", ".join(f"{n}: {spell(t)}" if typed else n for n, t in self.args)
        return f"def {self.name}({args})" + (f" -> {spell(self.returns)}:" if typed else ":")

    def source(self, typed=False, doc=None):
        lines = [self.signature(typed)]
        if doc:
            lines.append(textwrap.indent(f'"""{doc}"""', "    "))
        return "\n".join(lines + [textwrap.indent(self.body, "    ")])

    def run(self):
        """The examples as (call, result) in source form; inputs that raise or print too long are left out."""
        scope = dict(SCOPE)
        exec(self.source(), scope)
        out, seen = [], set()
        for given in self.inputs:
            call = f"{self.name}({', '.join(map(repr, given))})"
            try:
                result = repr(scope[self.name](*eval(repr(given), scope)))
            except (ValueError, IndexError, KeyError, ZeroDivisionError, TypeError, StopIteration):
                continue
            if len(call) < 190 and len(result) < 120 and call not in seen:
                seen.add(call)
                out.append((call, result))
        return out

    def imports(self, modern=False):
        """Import lines that the signature needs."""
        used = [w for w in ("Any", "Callable", "Dict", "List", "Optional", "Set", "Tuple", "Union") if re.search(rf"\b{w}\b", self.signature(True, modern))]
        return f"from typing import {', '.join(used)}\n\n\n" if used else ""
