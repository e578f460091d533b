"""The elements of an exchange, encoded once and laid side by side, ready to be copied by the thousand."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.operator_id import operator_id_of_uid
from cdr_core.kernels import frames
from cdr_core.kernels.generated_elements import ELEMENT, EXCHANGE, FIRST_RECORD, Bytes, Longs, Pools, Table
from cdr_core.synthetic.shape import ExchangeShape, Shape, Spread
from cdr_core.synthetic.template import Form, Number, Template, form_of, key_record, make_template
from cdr_core.synthetic.values import Draw

Weights = npt.NDArray[np.float64]

_FEWEST_TEMPLATES: Final = 512
_LEAST_PAYLOAD: Final = 1 << 20
"""Bytes that payloads are cut from: enough that few are alike, little enough for a processor's cache."""
_ZIPF: Final = 1.1
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One exchange's share of :class:`Pools`: of its elements, the first two are a watermark and a latency marker, all
    others records, ``mean`` bytes long on average.

    ``source[payload_start:]`` is what payloads are cut from. ``weights[d]`` is the share of downstream subtask d.
    """

    source: Bytes
    elements: Table
    mean: float
    payload_start: int
    sequence_width: int
    origin_width: int
    choices: Longs
    chances: Weights
    rows: Longs
    weights: Weights


def make_pool(shape: Shape, number: int) -> Pool:
    """Encode the elements of exchange ``number``."""
    exchange = shape.exchanges[number]
    form = form_of(exchange.record, exchange.key)
    rng = random.Random(f"pool {shape.seed} {number}")
    count = max(shape.keys, _FEWEST_TEMPLATES)
    keys = [index % shape.keys for index in range(count)]
    templates = [make_template(form, Draw(rng, exchange.key, key), shape.record_bytes) for key in keys]
    spread = _spread(shape, exchange, form, rng, np.array(keys))
    framed = [_frame(template, shape.timestamps) for template in templates]
    header = len(framed[0][0]) - len(templates[0].head)
    parts = [(_watermark(), b""), (_latency_marker(exchange), b""), *framed]
    encoded = np.frombuffer(b"".join(part for pair in parts for part in pair), np.uint8)
    elements = np.zeros(len(parts), ELEMENT)
    sizes = np.array([(len(head), len(tail)) for head, tail in parts], np.int64)
    ends = np.cumsum(sizes).reshape(-1, 2)
    elements["head"], elements["tail"] = (ends - sizes).T
    elements["head_end"], elements["tail_end"] = ends.T
    elements["payload"][FIRST_RECORD:] = [template.payload for template in templates]
    elements["length"] = sizes.sum(axis=1) + elements["payload"]
    elements["sequence_at"][FIRST_RECORD:] = [_behind(header, template.sequence_at) for template in templates]
    elements["origin_at"][FIRST_RECORD:] = [_behind(header, template.origin_at) for template in templates]
    payload = _payload_bytes(form, int(elements["payload"].max()), shape, number)
    return Pool(
        np.concatenate([encoded, payload]),
        elements,
        float(elements["length"][FIRST_RECORD:].mean()),
        len(encoded),
        _width(form.sequence),
        _width(form.origin),
        *spread,
    )


def join_pools(shape: Shape, pools: Sequence[Pool]) -> Pools:
    """Return the pools of ``shape.carriers`` as one."""
    elements, exchanges, choices, rows = [], [], [], []
    source = first_element = first_choice = first_row = 0
    for number, pool in zip(shape.carriers, pools, strict=True):
        exchange, moved = shape.exchanges[number], pool.elements.copy()
        for name in ("head", "head_end", "tail", "tail_end"):
            moved[name] += source
        parallelism = shape.parallelism[exchange.upstream], shape.parallelism[exchange.downstream]
        payload = source + pool.payload_start, source + len(pool.source)
        widths = pool.sequence_width, pool.origin_width
        exchanges.append((number, first_element, first_row, *payload, pool.mean, *widths, *parallelism))
        elements.append(moved)
        choices.append(pool.choices + first_element)
        rows.append(pool.rows + first_choice)
        source, first_element = source + len(pool.source), first_element + len(moved)
        first_choice, first_row = first_choice + len(pool.choices), first_row + len(pool.rows)
    return Pools(
        np.concatenate([pool.source for pool in pools]),
        np.concatenate(elements),
        np.array(exchanges, EXCHANGE),
        np.concatenate(choices),
        np.concatenate([pool.chances for pool in pools]),
        np.concatenate(rows),
    )


def _frame(template: Template, timestamps: bool) -> tuple[bytes, bytes]:
    """Return the template as an element: length field and tag in front of its head."""
    tag = struct.pack(">bq", frames.TAG_RECORD_WITH_TIMESTAMP, 0) if timestamps else bytes([frames.TAG_RECORD])
    length = len(tag) + len(template.head) + template.payload + len(template.tail)
    return struct.pack(">i", length) + tag + template.head, template.tail


def _watermark() -> bytes:
    return struct.pack(">ibq", 9, frames.TAG_WATERMARK, 0)


def _latency_marker(exchange: ExchangeShape) -> bytes:
    source = bytes.fromhex(operator_id(exchange.upstream))
    return struct.pack(">ibq16si", 29, frames.TAG_LATENCY_MARKER, 0, source, 0)


def operator_id(name: str) -> str:
    """Return the id of an operator of the spec: a name of 32 hex digits is the id itself, any other is a uid."""
    is_id = len(name) == 32 and all(letter in "0123456789abcdef" for letter in name.lower())
    return name.lower() if is_id else operator_id_of_uid(name)


def _behind(header: int, place: int) -> int:
    """Return a place in a record as one in its element; those counted from the end stay."""
    return place + header if place >= 0 else place


def _width(number: Number | None) -> int:
    """Return the number of bytes of a number, negative if they are little-endian."""
    if number is None:
        return 0
    return np.dtype(number.code).itemsize * (1 if number.code.startswith(">") else -1)


def _payload_bytes(form: Form, longest: int, shape: Shape, number: int) -> Bytes:
    rng = np.random.default_rng([shape.seed, number])
    payload = rng.integers(0, 256, max(_LEAST_PAYLOAD, 2 * longest), np.uint8)
    return _LETTERS[payload & 63] if form.text else payload


def _spread(
    shape: Shape, exchange: ExchangeShape, form: Form, rng: random.Random, keys: Longs
) -> tuple[Longs, Weights, Longs, Weights]:
    """Return records and their accumulated probabilities (none: all the same), begin and end of those that may wait for
    each downstream subtask, and each subtask's share.
    """
    parallelism = shape.parallelism[exchange.downstream]
    everything = np.arange(len(keys)) + FIRST_RECORD
    popularity = _zipf(shape.keys, rng) if shape.skew else np.ones(shape.keys)
    if exchange.spread is not Spread.KEYED:
        weights = _zipf(parallelism, rng) if shape.skew else np.ones(parallelism)
        if exchange.spread is Spread.FIRST:
            weights = (np.arange(parallelism) == 0).astype(np.float64)
        chances = _accumulated(popularity[keys]) if shape.skew else np.zeros(0)
        return everything, chances, np.tile([0, len(keys)], (parallelism, 1)), weights
    owners = _owners(shape, exchange, form, rng)[keys]
    order = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(parallelism + 1))
    likely = np.split(popularity[keys[order]], bounds[1:-1])
    weights = np.array([part.sum() for part in likely], np.float64)
    chances = np.concatenate([_accumulated(part) for part in likely]) if shape.skew else np.zeros(0)
    return everything[order], chances, np.stack([bounds[:-1], bounds[1:]], axis=1), weights


def _owners(shape: Shape, exchange: ExchangeShape, form: Form, rng: random.Random) -> Longs:
    """Return the downstream subtask that owns each key."""
    records = [key_record(form, Draw(rng, exchange.key, number)) for number in range(shape.keys)]
    ends = np.cumsum([len(record) for record in records])
    starts = ends - [len(record) for record in records]
    data = np.frombuffer(b"".join(records), np.uint8)
    groups = key_groups(exchange.record, exchange.key, data, starts, ends, shape.max_parallelism)
    parallelism = shape.parallelism[exchange.downstream]
    return np.array([owner(int(group), parallelism, shape.max_parallelism) for group in groups], np.int64)


def _zipf(count: int, rng: random.Random) -> Weights:
    """Return Zipf probabilities in random order: the popular key is not always number 0."""
    ranks = list(range(1, count + 1))
    rng.shuffle(ranks)
    return 1.0 / np.array(ranks, np.float64) ** _ZIPF


def _accumulated(weights: Weights) -> Weights:
    return np.cumsum(weights) / weights.sum() if len(weights) else weights
