"""``python .make/counts.py [DIR]``: how cdr_core reads, in numbers; run it on two checkouts to compare them."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

PATTERNS = {
    "dict or Mapping[str, Any]": r"\b(?:dict|Mapping)\[str, Any\]",
    '.get("…")': r"\.get\(\"",
    'x["…"]': r"\w\[\"[^\"]+\"\]",
    "cast(": r"\bcast\(",
    "Any": r"\bAny\b",
    "nobody, whoever, somebody, said": r"(?i)\b(?:nobody|whoever|somebody|said)\b",
}
SHORT_MODULE, LONG_FUNCTION = 60, 40


def counts(folder: Path) -> dict[str, int]:
    """The figures of all modules below a folder."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.py"))}
    found = {name: sum(len(re.findall(pattern, text)) for text in texts.values()) for name, pattern in PATTERNS.items()}
    lengths = [len(text.splitlines()) for path, text in texts.items() if path.name != "__init__.py"]
    functions = [
        node.end_lineno - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    return {
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "modules": len(texts),
        f"modules under {SHORT_MODULE} lines": sum(length < SHORT_MODULE for length in lengths),
        "functions": len(functions),
        f"functions over {LONG_FUNCTION} lines": sum(length > LONG_FUNCTION for length in functions),
        "modules that log": sum("logging.getLogger" in text for text in texts.values()),
        **found,
    }


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print(json.dumps(counts(root / "cdr_core"), indent=1, ensure_ascii=False))
