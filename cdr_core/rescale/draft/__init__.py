"""A job spec drafted from a checkpoint, and from Flink's own plan where there is one."""

from cdr_core.rescale.draft.draft import Draft, DraftedExchange, draft_spec
from cdr_core.rescale.draft.jobgraph import JobGraph, parse_job_graph
from cdr_core.rescale.draft.text import as_document, as_yaml

__all__ = ["Draft", "DraftedExchange", "JobGraph", "as_document", "as_yaml", "draft_spec", "parse_job_graph"]
