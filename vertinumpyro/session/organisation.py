"""A session between organisations, at one of them: every party runs the same method on its own machine.

Nobody starts the others and nobody collects the results. All run one program on the same public inputs, so at every
point they ask their own party for the same; what a party releases goes to the others, and everybody ends with the same
releases, the same posterior and a record of its own. What only a clock or a processor decides, how many steps come next
and where an iterative method begins, is party 0's word: it follows from public numbers, and whatever it says is
post-processing to the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import BackendError
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import LedgerRegistry
from vertinumpyro.session.distributed import DistributedSession
from vertinumpyro.session.party import Party
from vertinumpyro.session.requests import Begin, Iterate, Multiply, Publish, Request, Reveal, Sum
from vertinumpyro.session.reveal_to_one import PrivateOutput
from vertinumpyro.session.run import Payload
from vertinumpyro.session.task import PartyTask
from vertinumpyro.transport import Communicator, Traffic, pack, unpack

_COUNT = 8


@final
class OrganisationSession(DistributedSession):
    """One party's side. Use as a context manager: it closes the links.

    :param communicator: this party's number and its links to all others, helpers last; see `transport.connect_all`.
    :param task: this party's part.
    :raises DataError: the table breaks the schema; names the column.
    :raises AlignmentError: the parties' records differ.
    :raises PeerError: another party is gone or silent.
    """

    def __init__(self, communicator: Communicator, task: PartyTask) -> None:
        # a book of its own: the party's record of the same plan is the one that this process notes
        super().__init__(task.read_schema(), task.parties, {task.insecure_seed}, LedgerRegistry())
        self._communicator, self._task = communicator, task
        self._party = Party.seated(communicator, task)
        for words, _ in self._all_gather({"num_records": self._party.num_records, "dtypes": dict(self._party.dtypes)}):
            self._schema = self._schema.with_dtypes(words["dtypes"])

    @property
    def num_records(self) -> int:
        """N, which the parties found equal; of holders their records' sum."""
        return self._party.num_records

    def begin(self, plan: Plan, *, resume: bool) -> int:
        """See `DistributedSession.begin`; the other parties begin it at theirs."""
        words, _ = self._do(Begin(plan.to_dict(), resume))
        return max(found["steps_spent"] for found, _ in self._all_gather({"steps_spent": words["steps_spent"]}))

    def all_have(self, stored: bool) -> bool:
        """Whether every party has it; otherwise all go through the step, who released it the same again."""
        return all(found["stored"] for found, _ in self._all_gather({"stored": stored}))

    def publish(self, request: Publish) -> list[Payload]:
        replied, arrays = self._do(request)
        found = self._all_gather({"words": replied["words"]}, arrays)
        return [Payload(theirs["words"], held) for theirs, held in found]

    def broadcast(self, count: int) -> int:
        return int.from_bytes(self._communicator.broadcast(count.to_bytes(_COUNT, "little"), limit=_COUNT), "little")

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `Session.iterate`; the first call's state is party 0's."""
        if arrays:
            given = unpack(self._communicator.broadcast(pack({}, **arrays)))[1]
            arrays = _of_the_same_form(given, arrays, self.parties[0])
        replied, reached = self._do(Iterate(step, count), arrays)
        self.check_states({found["digest"] for found, _ in self._all_gather({"digest": replied["words"]["digest"]})})
        return Payload({}, reached)

    def reveal_to(self, method: PrivateOutput) -> pd.DataFrame | None:
        self._do(Reveal(method.digest()))
        return self._party.answers

    def close(self) -> None:
        """Let the others know that nothing more comes."""
        with contextlib.suppress(BackendError):  # who is gone need not be told
            self._party.close()
        for link in self._communicator.links.values():
            link.close()

    def values(self, request: Multiply | Sum) -> tuple[np.ndarray, tuple[int, ...]]:
        replied, arrays = self._do(request)
        return arrays["values"], tuple(replied["words"].get("widths", ()))

    def _do(
        self, request: Request, arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
        """This party's answer."""
        started = time.perf_counter()
        with self._party.answering():
            replied, found = self._party.do(request, arrays or {})
        self.seconds += time.perf_counter() - started
        if "traffic" in replied:
            self.traffic, self.dealer_traffic = Traffic(**replied["traffic"]), Traffic(**replied["dealer"])
        return replied, found

    def _all_gather(
        self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """Every party's public fields and arrays, which have the names of this one's.

        :raises BackendError: a party sent something else; names it.
        """
        found = [unpack(message) for message in self._communicator.all_gather(pack(dict(fields), **(arrays or {})))]
        for party, (theirs, _) in zip(self.parties, found, strict=True):
            if theirs.keys() != fields.keys() or any(type(theirs[key]) is not type(fields[key]) for key in fields):
                raise BackendError(f"{party} sent something else than {', '.join(fields)}; run one version everywhere")
        return found

    def __repr__(self) -> str:
        return f"OrganisationSession({self._task.party!r} of {', '.join(self.parties)}, {self.num_records} records)"


def _of_the_same_form(
    given: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], party: str
) -> Mapping[str, np.ndarray]:
    """Another party's arrays, where they have this one's names, shapes and types.

    :raises BackendError: they have not.
    """
    forms = [{name: (value.shape, str(value.dtype)) for name, value in arrays.items()} for arrays in (given, own)]
    if forms[0] != forms[1]:
        raise BackendError(f"{party!r} begins with a state of another form; run one version and one model everywhere")
    return given
