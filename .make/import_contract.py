"""A kind of import contract that import-linter lacks."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.contracts.protected import ProtectedContract


class Only(ProtectedContract):
    """Only the allowed importers import these packages: ``protected``, but kept also if no module imports one."""

    type_name = "only"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        for expression in self.protected_modules:  # type: ignore[attr-defined]  # a field, whose value is the list
            if expression.expression not in graph.modules:
                graph.add_module(expression.expression, is_squashed=True)
        return super().check(graph, verbose)
