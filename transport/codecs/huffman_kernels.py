"""Compiled parts of the Huffman codec; every array is C-contiguous and read as it is passed.

Codes are canonical, at most MAX_BITS long, the first bit highest. Four streams are coded side by
side so that the processor has four independent chains to work on; each ends with PAD zero bytes,
so that eight bytes can be read or written wherever a code begins.
"""

# Machine integers here are numba's, which mypy does not know; callers see the annotations.
# mypy: ignore-errors

from typing import Any

import numpy as np
from numba import njit

from transport.codecs.unaligned import load_u64_be, store_u32_le, store_u64_be

STREAMS = 4
MAX_BITS = 11
PAD = 8
_SLOTS = 1 << MAX_BITS
_PER_LOAD = 5  # codes that fit into the 57 bits which a load gives at least
_PER_SLOT = 4  # symbols that one look-up may give
_RESERVE = _PER_LOAD * _PER_SLOT

compiled = njit(cache=True, nogil=True)


@compiled
def split(bits: np.ndarray, bases: np.ndarray, symbols: np.ndarray, noise: np.ndarray) -> None:
    """Exponents around their channel's mean, and sign with mantissa.

    `bits` [tokens, channels] uint16. Fills `bases` [channels], `symbols` and `noise`
    [tokens * channels], all uint8.
    """
    tokens, channels = bits.shape
    sums = np.zeros(channels, np.uint32)
    for t in range(tokens):
        for c in range(channels):
            sums[c] += (bits[t, c] >> np.uint16(7)) & np.uint16(0xFF)
    for c in range(channels):
        bases[c] = np.uint8((sums[c] + np.uint32(tokens // 2)) // np.uint32(tokens))
    for t in range(tokens):
        row = t * channels
        for c in range(channels):
            x = bits[t, c]
            exponent = np.uint8(x >> np.uint16(7))
            symbols[row + c] = exponent - bases[c] + np.uint8(128)
            noise[row + c] = np.uint8(x & np.uint16(0x7F)) | np.uint8(
                (x >> np.uint16(8)) & np.uint16(0x80)
            )


@compiled
def join(symbols: np.ndarray, bases: np.ndarray, noise: np.ndarray, bits: np.ndarray) -> None:
    """The inverse of `split`: fills `bits` [tokens, channels] uint16."""
    tokens, channels = bits.shape
    for t in range(tokens):
        row = t * channels
        for c in range(channels):
            exponent = np.uint8(symbols[row + c] + bases[c] - np.uint8(128))
            low = np.uint16(noise[row + c])
            bits[t, c] = (
                (np.uint16(exponent) << np.uint16(7))
                | (low & np.uint16(0x7F))
                | ((low & np.uint16(0x80)) << np.uint16(8))
            )


@compiled
def count(symbols: np.ndarray, counts: np.ndarray) -> None:
    """How often each symbol stands in each of the streams; `counts` [STREAMS, 256] uint32."""
    step = (len(symbols) + STREAMS - 1) // STREAMS
    whole = max(len(symbols) - (STREAMS - 1) * step, 0)  # the last stream is the shortest
    # Two tables a stream: adding to one place twice in a row has to wait for memory.
    tables = np.zeros((2 * STREAMS, 256), np.uint32)
    one = np.uint32(1)
    for half in range(whole // 2):
        i = np.uint64(2 * half)
        for s in range(STREAMS):
            at = i + np.uint64(s * step)
            tables[2 * s, symbols[at]] += one
            tables[2 * s + 1, symbols[at + np.uint64(1)]] += one
    for s in range(STREAMS):
        for i in range(s * step + whole // 2 * 2, min((s + 1) * step, len(symbols))):
            tables[2 * s, symbols[i]] += one
        for symbol in range(256):
            counts[s, symbol] = tables[2 * s, symbol] + tables[2 * s + 1, symbol]


@compiled
def choose_lengths(counts: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> None:
    """Code lengths of a complete code, and each stream's size in bytes, PAD included.

    Huffman's two queues over the symbols by count; then lengths above MAX_BITS are cut, and the
    rarest symbols that can still grow pay for it until Kraft's sum is 1 again.
    """
    total = np.zeros(256, np.int64)
    for s in range(STREAMS):
        for symbol in range(256):
            total[symbol] += np.int64(counts[s, symbol])
    order = np.argsort(total)
    first = 0
    while first < 254 and total[order[first]] == 0:  # a code needs two symbols
        first += 1
    leaves = 256 - first
    weight = np.zeros(2 * leaves, np.int64)
    parent = np.zeros(2 * leaves, np.int64)
    for i in range(leaves):
        weight[i] = total[order[first + i]]
    leaf, node = 0, leaves
    for new in range(leaves, 2 * leaves - 1):
        for _ in range(2):
            if leaf < leaves and (node >= new or weight[leaf] <= weight[node]):
                taken = leaf
                leaf += 1
            else:
                taken = node
                node += 1
            weight[new] += weight[taken]
            parent[taken] = new
    depth = np.zeros(2 * leaves, np.int64)
    for i in range(2 * leaves - 3, -1, -1):
        depth[i] = depth[parent[i]] + 1
    kraft = 0
    for i in range(leaves):
        depth[i] = min(depth[i], MAX_BITS)
        kraft += 1 << (MAX_BITS - depth[i])
    while kraft > _SLOTS:  # rarest first; among them the longest that can grow costs least
        best = -1
        for i in range(leaves):
            if depth[i] < MAX_BITS and (best < 0 or depth[i] > depth[best]):
                best = i
        depth[best] += 1
        kraft -= 1 << (MAX_BITS - depth[best])
    for i in range(leaves - 1, -1, -1):  # what was overpaid goes to the commonest
        while depth[i] > 1 and kraft + (1 << (MAX_BITS - depth[i])) <= _SLOTS:
            kraft += 1 << (MAX_BITS - depth[i])
            depth[i] -= 1
    lengths[:] = 0
    for i in range(leaves):
        lengths[order[first + i]] = depth[i]
    for s in range(STREAMS):
        nbits = 0
        for symbol in range(256):
            nbits += np.int64(counts[s, symbol]) * np.int64(lengths[symbol])
        sizes[s] = (nbits + 7) // 8 + PAD


@compiled
def _codes(lengths: np.ndarray) -> np.ndarray:
    """Canonical codes from bit 16 up, their length in the low byte; [256] uint64."""
    codes = np.zeros(256, np.uint64)
    code = 0
    for length in range(1, MAX_BITS + 1):
        for symbol in range(256):
            if lengths[symbol] == length:
                codes[symbol] = np.uint64(code << 16 | length)
                code += 1
        code <<= 1
    return codes


@compiled
def _put(entry: Any, word: Any, used: Any) -> Any:
    """One more code below those in `word`. Only the low byte of `used` counts."""
    return word << (entry & np.uint64(63)) | entry >> np.uint64(16), used + entry


@compiled
def _top(word: Any, used: Any) -> Any:
    """The low `used` bits of `word`, 0 to 63 of them, at its top."""
    return word << np.uint64(1) << ((np.uint64(63) - used) & np.uint64(63))


@compiled
def write(symbols: np.ndarray, lengths: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None:
    """Code `symbols` into `out`, whose length is the sum of `sizes`."""
    codes = _codes(lengths)
    out[:] = 0
    size = np.uint64(len(symbols))
    step = np.uint64((len(symbols) + STREAMS - 1) // STREAMS)
    zero, one, three, seven, low = (
        np.uint64(0),
        np.uint64(1),
        np.uint64(3),
        np.uint64(7),
        np.uint64(255),
    )
    a0 = zero
    a1 = a0 + np.uint64(sizes[0])
    a2 = a1 + np.uint64(sizes[1])
    a3 = a2 + np.uint64(sizes[2])
    w0 = w1 = w2 = w3 = n0 = n1 = n2 = n3 = zero
    i0, i1, i2, i3 = zero, step, step * np.uint64(2), step * np.uint64(3)
    rounds = max(len(symbols) - (STREAMS - 1) * np.int64(step), 0) // _PER_LOAD
    for _ in range(rounds):
        for _ in range(_PER_LOAD):
            w0, n0 = _put(codes[symbols[i0]], w0, n0)
            w1, n1 = _put(codes[symbols[i1]], w1, n1)
            w2, n2 = _put(codes[symbols[i2]], w2, n2)
            w3, n3 = _put(codes[symbols[i3]], w3, n3)
            i0 += one
            i1 += one
            i2 += one
            i3 += one
        n0 &= low
        store_u64_be(out, a0, _top(w0, n0))
        a0 += n0 >> three
        n0 &= seven
        n1 &= low
        store_u64_be(out, a1, _top(w1, n1))
        a1 += n1 >> three
        n1 &= seven
        n2 &= low
        store_u64_be(out, a2, _top(w2, n2))
        a2 += n2 >> three
        n2 &= seven
        n3 &= low
        store_u64_be(out, a3, _top(w3, n3))
        a3 += n3 >> three
        n3 &= seven
    end = zero
    for s in range(STREAMS):
        at, word, used = ((a0, w0, n0), (a1, w1, n1), (a2, w2, n2), (a3, w3, n3))[s]
        i = (i0, i1, i2, i3)[s]
        end = min(end + step, size)
        while i < end:
            word, used = _put(codes[symbols[i]], word, used)
            used &= low
            store_u64_be(out, at, _top(word, used))
            at += used >> three
            used &= seven
            i += one


@compiled
def table(lengths: np.ndarray, slots: np.ndarray) -> bool:
    """False unless `lengths` are a complete code. `slots` [1 << MAX_BITS] uint64.

    A slot tells, for the next MAX_BITS bits: up to four symbols (low 32 bits, first lowest), how
    many (8 bits), and how many bits they take (8 bits).
    """
    kraft = 0
    for symbol in range(256):
        if lengths[symbol] > MAX_BITS:
            return False
        if lengths[symbol]:
            kraft += 1 << (MAX_BITS - np.int64(lengths[symbol]))
    if kraft != _SLOTS:
        return False
    single = np.empty(_SLOTS, np.uint16)  # symbol, length
    at = 0
    for length in range(1, MAX_BITS + 1):
        for symbol in range(256):
            if lengths[symbol] == length:
                n = 1 << (MAX_BITS - length)
                single[at : at + n] = np.uint16(symbol | length << 8)
                at += n
    for slot in range(_SLOTS):
        symbols = np.uint64(0)
        n = np.uint64(0)
        used = 0
        while n < np.uint64(_PER_SLOT):
            entry = single[(slot << used) & (_SLOTS - 1)]
            length = np.int64(entry >> np.uint16(8))
            if used + length > MAX_BITS:
                break
            symbols |= np.uint64(entry & np.uint16(0xFF)) << (n * np.uint64(8))
            n += np.uint64(1)
            used += length
        slots[slot] = symbols | n << np.uint64(32) | np.uint64(used) << np.uint64(40)
    return True


@compiled
def _five(slots: np.ndarray, coded: np.ndarray, at: Any, out: np.ndarray, to: Any) -> Any:
    """Up to _RESERVE symbols from bit `at` on; the new bit and the new end of `out`."""
    word = load_u64_be(coded, at >> np.uint64(3)) << (at & np.uint64(7))
    for _ in range(_PER_LOAD):
        entry = slots[word >> np.uint64(64 - MAX_BITS)]
        store_u32_le(out, to, entry)
        to += (entry >> np.uint64(32)) & np.uint64(0xFF)
        used = entry >> np.uint64(40)
        word <<= used
        at += used
    return at, to


@compiled
def read(
    coded: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, slots: np.ndarray, out: np.ndarray
) -> bool:
    """The inverse of `write`: fill `out`. False when the streams are not of these sizes."""
    step = (len(out) + STREAMS - 1) // STREAMS
    eight = np.uint64(8)
    begin = np.zeros(STREAMS + 1, np.uint64)
    for s in range(STREAMS):
        begin[s + 1] = begin[s] + np.uint64(sizes[s])
    b0, b1, b2, b3 = begin[0] * eight, begin[1] * eight, begin[2] * eight, begin[3] * eight
    # The last bit at which eight bytes can still be read.
    pad = np.uint64(PAD)
    l0, l1 = (begin[1] - pad) * eight, (begin[2] - pad) * eight
    l2, l3 = (begin[3] - pad) * eight, (begin[4] - pad) * eight
    o0, o1, o2, o3 = np.uint64(0), np.uint64(step), np.uint64(2 * step), np.uint64(3 * step)
    reserve = np.uint64(_RESERVE)
    if len(out) >= STREAMS * _RESERVE:
        e0, e1, e2 = o1 - reserve, o2 - reserve, o3 - reserve
        e3 = np.uint64(len(out)) - reserve
        while (
            (o0 <= e0)
            & (o1 <= e1)
            & (o2 <= e2)
            & (o3 <= e3)
            & (b0 <= l0)
            & (b1 <= l1)
            & (b2 <= l2)
            & (b3 <= l3)
        ):
            b0, o0 = _five(slots, coded, b0, out, o0)
            b1, o1 = _five(slots, coded, b1, out, o1)
            b2, o2 = _five(slots, coded, b2, out, o2)
            b3, o3 = _five(slots, coded, b3, out, o3)
    for s in range(STREAMS):
        at, to, last = ((b0, o0, l0), (b1, o1, l1), (b2, o2, l2), (b3, o3, l3))[s]
        end = np.uint64(min((s + 1) * step, len(out)))
        while to < end:
            if at > last:
                return False
            word = load_u64_be(coded, at >> np.uint64(3)) << (at & np.uint64(7))
            symbol = slots[word >> np.uint64(64 - MAX_BITS)] & np.uint64(0xFF)
            out[to] = np.uint8(symbol)
            to += np.uint64(1)
            at += np.uint64(lengths[symbol])
        if (at + np.uint64(7)) >> np.uint64(3) != last >> np.uint64(3):
            return False
    return True
