"""A job spec drafted from a checkpoint, and from Flink's own plan where there is one."""

from cdr_core.drafting.draft import Draft, DraftedExchange, draft_spec
from cdr_core.drafting.draft_text import as_document, as_yaml
from cdr_core.drafting.job_graph import JobGraph, parse_job_graph

__all__ = ["Draft", "DraftedExchange", "JobGraph", "as_document", "as_yaml", "draft_spec", "parse_job_graph"]
