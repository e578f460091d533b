"""The elements of an exchange, encoded once and laid side by side, ready to be copied by the thousand."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cdr_core.flink.generate.shape import ExchangeShape, Shape, Spread
from cdr_core.flink.generate.template import Form, Template, form_of, key_record, make_template
from cdr_core.flink.generate.values import Draw
from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.uid import operator_id_of_uid
from cdr_core.kernels import frames

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

WATERMARK: Final = 0
LATENCY_MARKER: Final = 1
FIRST_RECORD: Final = 2
"""Elements by their number in the pool."""

TIME_AT: Final = 5
"""Where a watermark, a marker and a record with a timestamp hold their time, counted from the length field."""
MARKER_SUBTASK_AT: Final = 29

_FEWEST_TEMPLATES: Final = 512
_LEAST_PAYLOAD: Final = 1 << 20
"""Bytes that payloads are cut from: enough that few are alike, little enough for a processor's cache."""
_ZIPF: Final = 1.1
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


class Numbers(NamedTuple):
    """Where each element has a number of its own (from its begin, or negative: from its end), and its numpy type."""

    at: Longs
    code: str


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Element i is ``source[head_starts[i]:head_ends[i]]``, ``payloads[i]`` bytes from anywhere in
    ``source[payload_start:]``, and ``source[tail_starts[i]:tail_ends[i]]``; together ``lengths[i]`` bytes, of records
    ``mean`` on average.

    The first two are a watermark and a latency marker, all others records. ``choices[d]`` are the records that may wait
    for downstream subtask d, ``chances[d]`` their accumulated probabilities (``None``: all the same), ``weights[d]``
    its share of the exchange.
    """

    source: Bytes
    head_starts: Longs
    head_ends: Longs
    payloads: Longs
    tail_starts: Longs
    tail_ends: Longs
    lengths: Longs
    mean: float
    payload_start: int
    timestamps: bool
    sequence: Numbers | None
    origin: Numbers | None
    choices: tuple[Longs, ...]
    chances: tuple[Weights | None, ...]
    weights: Weights


def make_pool(shape: Shape, number: int) -> Pool:
    """Encode the elements of exchange ``number``."""
    exchange = shape.exchanges[number]
    form = form_of(exchange.record, exchange.key)
    rng = random.Random(f"pool {shape.seed} {number}")
    count = max(shape.keys, _FEWEST_TEMPLATES)
    keys = [index % shape.keys for index in range(count)]
    templates = [make_template(form, Draw(rng, exchange.key, key), shape.record_bytes) for key in keys]
    choices, chances, weights = _spread(shape, exchange, form, rng, np.array(keys))
    rows = [_frame(template, shape.timestamps) for template in templates]
    specials = [_watermark(), _latency_marker(exchange)]
    header = len(rows[0][0]) - len(templates[0].head)
    return Pool(
        *_lay_out(form, specials, rows, [t.payload for t in templates], shape, number),
        timestamps=shape.timestamps,
        sequence=_numbers(form.sequence.code, [t.sequence_at for t in templates], header) if form.sequence else None,
        origin=_numbers(form.origin.code, [t.origin_at for t in templates], header) if form.origin else None,
        choices=choices,
        chances=chances,
        weights=weights,
    )


def _frame(template: Template, timestamps: bool) -> tuple[bytes, bytes]:
    """The template as an element: length field and tag in front of its head."""
    tag = struct.pack(">bq", frames.TAG_RECORD_WITH_TIMESTAMP, 0) if timestamps else bytes([frames.TAG_RECORD])
    length = len(tag) + len(template.head) + template.payload + len(template.tail)
    return struct.pack(">i", length) + tag + template.head, template.tail


def _watermark() -> bytes:
    return struct.pack(">ibq", 9, frames.TAG_WATERMARK, 0)


def _latency_marker(exchange: ExchangeShape) -> bytes:
    source = bytes.fromhex(operator_id(exchange.upstream))
    return struct.pack(">ibq16si", 29, frames.TAG_LATENCY_MARKER, 0, source, 0)


def operator_id(name: str) -> str:
    """The id of an operator of the spec: a name that is an id is meant as one, any other is a uid."""
    is_id = len(name) == 32 and all(letter in "0123456789abcdef" for letter in name.lower())
    return name.lower() if is_id else operator_id_of_uid(name)


def _numbers(code: str, at: list[int], header: int) -> Numbers:
    """Positions behind the element's header; those counted from the end stay."""
    places = np.array([0] * FIRST_RECORD + [place + header if place >= 0 else place for place in at], np.int64)
    return Numbers(places, code)


def _lay_out(
    form: Form, specials: list[bytes], rows: list[tuple[bytes, bytes]], payloads: list[int], shape: Shape, number: int
) -> tuple[Bytes, Longs, Longs, Longs, Longs, Longs, Longs, float, int]:
    """Heads and tails side by side, the bytes of payloads behind them."""
    parts = [(special, b"") for special in specials] + rows
    sizes = np.array([len(part) for pair in parts for part in pair], np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    stretch = np.array([0] * len(specials) + payloads, np.int64)
    encoded = np.frombuffer(b"".join(part for pair in parts for part in pair), np.uint8)
    rng = np.random.default_rng([shape.seed, number])
    payload = rng.integers(0, 256, max(_LEAST_PAYLOAD, 2 * max(payloads)), np.uint8)
    if form.text:
        payload = _LETTERS[payload & 63]
    source = np.concatenate([encoded, payload])
    lengths = sizes[0::2] + stretch + sizes[1::2]
    mean = float(lengths[FIRST_RECORD:].mean())
    return source, starts[0::2], ends[0::2], stretch, starts[1::2], ends[1::2], lengths, mean, len(encoded)


def _spread(
    shape: Shape, exchange: ExchangeShape, form: Form, rng: random.Random, keys: Longs
) -> tuple[tuple[Longs, ...], tuple[Weights | None, ...], Weights]:
    """Which records may wait for which downstream subtask, how likely each is, and each subtask's share."""
    parallelism = shape.parallelism[exchange.downstream]
    everything = np.arange(len(keys)) + FIRST_RECORD
    popularity = _zipf(shape.keys, rng) if shape.skew else np.ones(shape.keys)
    if exchange.spread is not Spread.KEYED:
        weights = _zipf(parallelism, rng) if shape.skew else np.ones(parallelism)
        if exchange.spread is Spread.FIRST:
            weights = np.arange(parallelism) == 0
        chances = _accumulated(popularity[keys]) if shape.skew else None
        return (everything,) * parallelism, (chances,) * parallelism, weights.astype(np.float64)
    owners = _owners(shape, exchange, form, rng)[keys]
    chosen = [everything[owners == subtask] for subtask in range(parallelism)]
    likely = [popularity[keys[chosen_ids - FIRST_RECORD]] for chosen_ids in chosen]
    weights = np.array([part.sum() for part in likely], np.float64)
    return tuple(chosen), tuple(_accumulated(part) if shape.skew else None for part in likely), weights


def _owners(shape: Shape, exchange: ExchangeShape, form: Form, rng: random.Random) -> Longs:
    """The downstream subtask that owns each key."""
    records = [key_record(form, Draw(rng, exchange.key, number)) for number in range(shape.keys)]
    ends = np.cumsum([len(record) for record in records])
    starts = ends - [len(record) for record in records]
    data = np.frombuffer(b"".join(records), np.uint8)
    groups = key_groups(exchange.record, exchange.key, data, starts, ends, shape.max_parallelism)
    parallelism = shape.parallelism[exchange.downstream]
    return np.array([owner(int(group), parallelism, shape.max_parallelism) for group in groups], np.int64)


def _zipf(count: int, rng: random.Random) -> Weights:
    """Few that are many, in an order of chance: the popular key is not always number 0."""
    ranks = list(range(1, count + 1))
    rng.shuffle(ranks)
    return 1.0 / np.array(ranks, np.float64) ** _ZIPF


def _accumulated(weights: Weights) -> Weights:
    return np.cumsum(weights) / weights.sum() if len(weights) else weights
