"""Modules, lines, import circles and docstrings of a package, from its source alone."""

from __future__ import annotations

import ast
import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path

SHORT = 80
_SAYS_WHY = re.compile(r"^\s*Short because ", re.MULTILINE)
_STYLES = {
    "fields": re.compile(r"^\s*:(param \w+|returns?|raises \w+|yields?):", re.MULTILINE),
    "google": re.compile(r"^\s*(Args|Returns|Raises|Yields):$", re.MULTILINE),
}


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """As `wc -l` counts them."""
        return self.text.count("\n")

    @property
    def only_reexports(self) -> bool:
        """A package's `__init__` of a docstring, imports and `__all__`."""
        others = (n for n in self.tree.body if not isinstance(n, ast.Import | ast.ImportFrom))
        return self.path.name == "__init__.py" and all(_is_docstring(n) or _is_all(n) for n in others)

    @property
    def is_short_without_reason(self) -> bool:
        """Below 80 lines, and no line of its docstring begins with "Short because"."""
        return self.lines < SHORT and not _SAYS_WHY.search(ast.get_docstring(self.tree) or "")

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """(module, name or None) of every import, those for the type checker and within functions included."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((source, alias.name) for alias in node.names)

    def docstrings(self) -> Iterator[str]:
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        yield from (ast.get_docstring(n) or "" for n in ast.walk(self.tree) if isinstance(n, owners))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


@dataclasses.dataclass(frozen=True)
class Layout:
    """All modules of the package in a folder, by name."""

    modules: Mapping[str, Module]

    @classmethod
    def of(cls, package: Path) -> Layout:
        found = {}
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
        return cls(found)

    @property
    def lines(self) -> int:
        return sum(module.lines for module in self.modules.values())

    @property
    def median(self) -> float:
        return statistics.median(m.lines for m in self.modules.values() if not m.only_reexports)

    @property
    def short_without_reason(self) -> list[Module]:
        """The shortest first."""
        found = (m for m in self.modules.values() if m.is_short_without_reason and not m.only_reexports)
        return sorted(found, key=lambda module: module.lines)

    @property
    def styles(self) -> dict[str, int]:
        """Docstrings with `:param:` fields, and with Google's sections."""
        texts = [text for module in self.modules.values() for text in module.docstrings()]
        return {style: sum(bool(marks.search(text)) for text in texts) for style, marks in _STYLES.items()}

    def circles(self) -> list[list[str]]:
        """Modules that import each other, directly or over others; the largest circle first."""
        edges = {name: {self._home(*i) for i in module.imports()} - {None, name} for name, module in self._code()}
        reached = {name: _reached(name, edges) for name in edges}
        groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in edges}
        return sorted((sorted(group) for group in groups if len(group) > 1), key=lambda g: (-len(g), g))

    def _code(self) -> Iterator[tuple[str, Module]]:
        """Modules but packages' `__init__`: who imports a name from one is taken to import its home."""
        return ((n, m) for n, m in self.modules.items() if m.path.name != "__init__.py")

    def _home(self, source: str, name: str | None) -> str | None:
        """The module that an import reads, followed through packages' own imports; None outside the package."""
        if name is not None and f"{source}.{name}" in self.modules:
            source, name = f"{source}.{name}", None
        module = self.modules.get(source)
        if module is None or module.path.name != "__init__.py":
            return source if module is not None else None
        homes = (home for home, alias in module.imports() if name is not None and alias == name)
        return next((self._home(home, name) for home in homes if home != source), None)


def _reached(start: str, edges: Mapping[str, Set[str | None]]) -> set[str]:
    """All that the start imports, over others too."""
    found: set[str] = set()
    to_do = [start]
    while to_do:
        new = {name for name in edges.get(to_do.pop(), ()) if name is not None} - found
        found |= new
        to_do += new
    return found
