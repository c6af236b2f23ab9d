"""Parties between real processes that show other rows than a table can have, another word, or leave in the middle."""

import dataclasses
import multiprocessing
import os

import numpy as np

from vertinumpyro.mrf import VertiMRF
from vertinumpyro.secure import Crypten, verified_tables
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session.reveal_once import _READY


class Liar(Crypten):
    """Party 1's records count 4096 times."""

    def end(self, communicator, num_parties, watch=None):
        if communicator.rank == 1:
            real = verified_tables.one_hot
            verified_tables.one_hot = lambda codes, sizes: real(codes, sizes) * 4096
        return super().end(communicator, num_parties, watch)


class Leaver(Crypten):
    """A party whose records count many times, gone when all have their part of the result on disk, unsent."""

    def end(self, communicator, num_parties, watch=None):
        if multiprocessing.parent_process() is not None:
            from vertinumpyro.secure.crypten import protocol

            real, honest = type(communicator).all_gather, protocol.noisy_cross_products
            protocol.noisy_cross_products = lambda engine, what, matrix, noise: honest(
                engine, what, np.full(matrix.shape, 2**26), noise
            )

            def all_gather(self, message, *args, **kwargs):
                if message == _READY:
                    os._exit(1)
                return real(self, message, *args, **kwargs)

            type(communicator).all_gather = all_gather
        return super().end(communicator, num_parties, watch)


@dataclasses.dataclass(frozen=True)
class LyingHolder(SecureAggregation):
    """Holder 1 says another word in one round of a sum, of which the first is that of the numbers of records."""

    name: str = "agreed"
    number: int = 1

    def end(self, communicator, num_parties, watch=None):
        end, begun = super().end(communicator, num_parties, watch), []
        if communicator.rank == 1 and multiprocessing.parent_process() is not None:
            real = end._send

            def send(name, outgoing, sizes):
                begun.extend([name] * (name == "keys"))
                if name == self.name and len(begun) == self.number + 1:
                    outgoing = {rank: bytes([message[0] ^ 1]) + message[1:] for rank, message in outgoing.items()}
                return real(name, outgoing, sizes)

            end._send = send
        return end


def believing():
    return VertiMRF(backend=Crypten(security="semi-honest"), iterations=5)


def leaving():
    return VertiMRF(backend=Leaver(security="semi-honest"), iterations=5)


def lying():
    return VertiMRF(backend=Liar(), iterations=5)


def verifying():
    return VertiMRF(backend=Crypten(), iterations=5)
