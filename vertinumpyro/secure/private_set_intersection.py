"""Which ids all parties hold: private set intersection by Diffie-Hellman, for any number of parties and one helper.

Every party hashes its ids to points, shuffles them and masks them with a secret key. The lists then pass from party to
party, each masking all that it gets with its own key, until each list bears everybody's; the last one hands it to the
helper. Equal ids have become equal points, in whatever order the keys came, so the helper sees which places of the
lists agree in all of them, and tells each party the places in its own.

What is learned, where everybody follows the protocol (semi-honest): a party, which of its own ids all others hold too,
and how long the others' lists are (`pad_to` hides it); the helper, how many places the lists have in common, and no id,
for it has no key. A party never sees a list under all keys, its own least of all, so of more than two it does not learn
which others hold an id that one of them lacks. A helper and a party together learn which of that party's ids each other
party holds. What is sent is uniform to whoever lacks a key that it bears, under decisional Diffie-Hellman on Curve25519
in the random oracle model; a party may always put in ids that are not its own.

The number of common records is public afterwards, and not differentially private.

**Points.** Texts become points of Curve25519 whose logarithm nobody knows. A point is the u-coordinate of X25519, 32
bytes. `point` hashes a text to the field (SHA-512, so the remainder is as good as uniform) and maps that to the curve
by Elligator 2 (RFC 9380, section 6.7.1): always to the curve and never to its twist, which masking keeps, so that a
masked point does not tell on which of both its text had come to lie.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure.keystream import fresh_key
from vertinumpyro.transport import Communicator, exchange

POINT_BYTES = 32

_FIELD = 2**255 - 19
_J = 486662
_EXPONENT = (_FIELD - 1) // 2
_CHUNK = 4096
_WORTH_PROCESSES = 20_000

Work = Callable[[Sequence[bytes]], list[bytes]]


def points(texts: Sequence[bytes], *, domain: bytes) -> list[bytes]:
    """The point of each text.

    :param domain: what they are hashed for; points of another domain have nothing to do with them.
    """
    return [_elligator(hashlib.sha512(domain + text).digest()) for text in texts]


def masked(found: Sequence[bytes], *, key: bytes) -> list[bytes]:
    """Each point times the key: whoever has not the key cannot tell it from a random one (decisional Diffie-Hellman).

    :raises ValueError: one of them is no point that hashing gives.
    """
    secret = X25519PrivateKey.from_private_bytes(key)
    return [secret.exchange(X25519PublicKey.from_public_bytes(bytes(point))) for point in found]


def in_parallel(work: Work, items: Sequence[bytes], done: Callable[[int], None] = lambda count: None) -> list[bytes]:
    """`work` on all items in their order, in processes of its own where that pays.

    :param work: `points` or `masked` with its keyword, as a `functools.partial`.
    :param done: called with how many items are through.
    """
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    out: list[bytes] = []
    if len(items) < _WORTH_PROCESSES or (os.cpu_count() or 1) == 1:
        for chunk in chunks:
            out += work(chunk)
            done(len(out))
        return out
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(work, chunks):
            out += found
            done(len(out))
    return out


def _elligator(hashed: bytes) -> bytes:
    """A square or not, u or -u - J: one of both is on the curve, and it is the one that is returned."""
    r = int.from_bytes(hashed, "little") % _FIELD
    u = -_J * pow(1 + 2 * r * r, -1, _FIELD) % _FIELD
    if pow(u * (u * u + _J * u + 1) % _FIELD, _EXPONENT, _FIELD) == _FIELD - 1:
        u = (-u - _J) % _FIELD
    return u.to_bytes(POINT_BYTES, "little")


_COUNT = 8
_MOST_IDS = 2**25
_DOMAIN = b"vertinumpyro linkage 1\n"

Progress = Callable[[str, int, int], None]
"""(what is being done, how many ids are through, of how many)."""


def common_places(
    communicator: Communicator,
    ids: Sequence[str],
    *,
    topic: bytes,
    pad_to: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> np.ndarray:
    """Which of this party's ids every party holds: their numbers, ascending, int64.

    :param communicator: of a party, with one helper behind the parties.
    :param ids: each once, written by one rule at all parties.
    :param topic: what all are here for; points of another topic have nothing to do with these.
    :param pad_to: every party's list has as many entries, the others random, so that no length is learned.
    :raises ArgumentError: there are more ids than `pad_to` or than can be linked, or one is there twice.
    :raises BackendError: a party or the helper sends something else.
    """
    check_ids(ids, pad_to)
    key, parties = fresh_key(), communicator.num_parties
    texts = [identifier.encode() for identifier in ids]
    texts += [secrets.token_bytes(POINT_BYTES) for _ in range((pad_to or 0) - len(ids))]
    shuffled = secrets.SystemRandom().sample(range(len(texts)), len(texts))
    order = np.asarray(shuffled, dtype=np.int64)
    own = in_parallel(
        partial(points, domain=_DOMAIN + topic + b"\n"),
        [texts[number] for number in shuffled],
        lambda done: progress("hashing", done, len(texts)),
    )
    held = _masked(own, key, progress, f"masking 1 of {parties}")
    sizes = [_checked(size) for size in communicator.all_gather(len(held).to_bytes(_COUNT, "little"), _COUNT)]
    for hop in range(1, parties):
        owner = (communicator.rank - hop) % parties
        held = _masked(_passed_on(communicator, held, sizes[owner]), key, progress, f"masking {hop + 1} of {parties}")
    return _told(communicator, held, order, len(ids))


def check_ids(ids: Sequence[str], pad_to: int | None) -> None:
    """Refuses a list that cannot be linked, before anybody is met.

    :raises ArgumentError: there are more ids than `pad_to` or than can be linked, or one is there twice.
    """
    if len(set(ids)) != len(ids):
        raise ArgumentError("ids must be different from each other")
    if max(len(ids), pad_to or 0) > _MOST_IDS:
        raise ArgumentError(f"at most {_MOST_IDS} ids can be linked")
    if pad_to is not None and len(ids) > pad_to:
        raise ArgumentError(f"this party has more ids than the {pad_to} that lists are padded to; agree on more")


def find_common(communicator: Communicator) -> int:
    """The helper's side: places that agree in all lists; how many there are.

    :raises BackendError: a party sends something else.
    """
    parties = communicator.num_parties
    lists: dict[int, dict[bytes, int]] = {}
    for rank in range(parties):
        link = communicator.links[rank]
        size = _checked(link.receive(size=_COUNT))
        found = _split(link.receive(size=size * POINT_BYTES))
        owner = (rank + 1) % parties  # whose list ends at this party
        lists[owner] = {point: place for place, point in enumerate(found)}
        if len(lists[owner]) != size:
            raise BackendError(f"{link.peer} sent a list with an entry twice; are all of one version?")
    common = sorted(set.intersection(*(set(found) for found in lists.values())))
    for rank in range(parties):
        places = np.asarray([lists[rank][point] for point in common], dtype="<i8")
        communicator.links[rank].send(len(common).to_bytes(_COUNT, "little"))
        communicator.links[rank].send(places.tobytes())
    return len(common)


def _told(communicator: Communicator, held: list[bytes], order: np.ndarray, num_ids: int) -> np.ndarray:
    """Hands the list that ended here to the helper, and takes the places in the own one."""
    helper = communicator.links[communicator.num_parties]
    helper.send(len(held).to_bytes(_COUNT, "little"))
    helper.send(b"".join(held))
    count = int.from_bytes(helper.receive(size=_COUNT), "little")
    if count > len(order):
        raise BackendError(f"{helper.peer} tells of more common ids than there are; nothing was kept")
    places = np.frombuffer(bytes(helper.receive(size=8 * count)), dtype="<i8")
    counts = communicator.all_gather(count.to_bytes(_COUNT, "little"), _COUNT)
    in_range = bool(np.all((places >= 0) & (places < len(order))))
    if len(set(counts)) > 1 or not in_range or len(np.unique(places)) != count:
        raise BackendError(f"{helper.peer} told the parties of different places; nothing was kept")
    numbers = np.sort(order[places])
    if count and numbers[-1] >= num_ids:
        raise BackendError(f"{helper.peer} told of a place that no id has; nothing was kept")
    return numbers


def _passed_on(communicator: Communicator, held: list[bytes], size: int) -> list[bytes]:
    """This list to the next party, and the one of the party before."""
    following, before = (
        (communicator.rank + 1) % communicator.num_parties,
        (communicator.rank - 1) % communicator.num_parties,
    )
    links = {rank: communicator.links[rank] for rank in {following, before}}
    outgoing = {rank: b"".join(held) if rank == following else b"" for rank in links}
    expected = {rank: size * POINT_BYTES if rank == before else 0 for rank in links}
    return _split(exchange(links, outgoing, expected)[before])


def _masked(found: list[bytes], key: bytes, progress: Progress, what: str) -> list[bytes]:
    try:
        return in_parallel(partial(masked, key=key), found, lambda done: progress(what, done, len(found)))
    except ValueError:
        raise BackendError("a party sent something else than masked ids; are all of one version?") from None


def _checked(size: bytes | bytearray) -> int:
    """The length of a list, before anything is allocated for it."""
    found = int.from_bytes(size, "little")
    if found > _MOST_IDS:
        raise BackendError(f"a party announces a list of {found} ids; at most {_MOST_IDS} can be linked")
    return found


def _split(data: bytes | bytearray) -> list[bytes]:
    return [bytes(data[start : start + POINT_BYTES]) for start in range(0, len(data), POINT_BYTES)]
