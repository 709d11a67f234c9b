"""Examples of what is a formula in Markdown and what is not, for the server and the browser."""

from __future__ import annotations

FORMULAS: dict[str, tuple[str, list[str]]] = {  # a text and the TeX in it
    "dollars": ("Let $x_1$ and $y_2$ be.", ["x_1", "y_2"]),
    "a number": ("It is $10$ or $2^n$ or $5 + x$.", ["10", "2^n", "5 + x"]),
    "prices": ("From $5 to $10, or US$7 and 8$.", []),
    "prices with a dot": ("It costs $5. Then $6.50 more.", []),
    "spaces inside": ("a $ x $ b", []),
    "over lines": ("a $x\ny$ b", []),
    "round brackets": (r"So \(a_b^2\) holds, and \( c \) too.", ["a_b^2", "c"]),
    "square brackets": (r"Then \[x = 1\] follows.", ["x = 1"]),
    "two dollars in a line": ("Then $$x = 1$$ follows.", ["x = 1"]),
    "a block": ("Text:\n$$\na\n= b\n- c\n$$\nafter", ["a\n= b\n- c"]),
    "a block of brackets": ("\\[\na \\\\[2pt]\n> b\n\\]\n", ["a \\\\[2pt]\n> b"]),
    "a block in a list": ("1. first\n   $$x$$\n2. second $y$\n", ["x", "y"]),
    "a block in a quote": ("> $$\n> x\n> $$\n", ["x"]),
    "an empty line ends it": ("$$\na\n\nb\n$$ c", []),
    "never closed": ("\\[ a\nb \\( c", []),
    "a block with words after it": ("$$a$$ b\n", ["a"]),
    "escaped": (r"\$x\$ and $a\$b$", [r"a\$b"]),
    "code": ("`$x$` and\n\n```\n$$y$$\n```\n", []),
    "emphasis": ("**a $b$** and *c*", ["b"]),
    "nothing inside": (r"a $$ $$ b \(\) c", []),
    "hostile": ("$<img src=x onerror=alert(1)>$", ["<img src=x onerror=alert(1)>"]),
    "brackets of a link": (r"\[a](https://example.com) \(b", []),
}
