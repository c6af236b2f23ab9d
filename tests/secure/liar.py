"""A party between real processes that shows other rows than a table can have."""

from vertinumpyro.secure import Crypten, verified_tables


class Liar(Crypten):
    """Party 1's records count 4096 times."""

    def end(self, communicator, num_parties, watch=None):
        if communicator.rank == 1:
            real = verified_tables.one_hot
            verified_tables.one_hot = lambda codes, sizes: real(codes, sizes) * 4096
        return super().end(communicator, num_parties, watch)
