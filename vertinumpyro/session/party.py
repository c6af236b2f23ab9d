"""A party's process: reads its own table, keeps its own ledger, draws its own noise, and computes with the others."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import AlignmentError, ArgumentError, BackendError, CheckFailedError, PlanSpentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.data import (
    Schema,
    TableFacts,
    VerticalDataset,
    alignment_digest,
    check_digests,
)
from vertinumpyro.data.alignment import records_differ
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.gradient_plan import NoisySumPlan
from vertinumpyro.privacy.sampling import BatchStream, PoissonSampling
from vertinumpyro.secure.between_processes import BetweenProcesses, PartyProtocol
from vertinumpyro.session.party_computation import (
    Begin,
    HorizontalMethod,
    Iterate,
    Method,
    Multiply,
    PartyComputation,
    Publish,
    ReleaseRequest,
    Request,
    Reveal,
    Sum,
    party_sources,
)
from vertinumpyro.session.reveal_once import RevealLog, SharedRandomSource, fresh_bytes, lost, toss_coins
from vertinumpyro.session.reveal_to_one import check_agreed, identified, reveal_to_one, write_answer
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.task import PartyTask
from vertinumpyro.transport import Communicator, GroupCommunicator

SENT = "sent.npz"
"""What a party sent, or stood ready to send, of each step: to be sent again as it was, never computed anew."""

_DIGEST = 32
_DIFFERS = "the parties were asked for different things; start the run again"

Arrays = Mapping[str, np.ndarray]
Words = Mapping[str, Any]
Reply = tuple[dict[str, Any], Arrays]


def run_party(communicator: GroupCommunicator, task: PartyTask) -> None:
    """The life of a party's process: join, match records, then what the starter asks until it says stop."""
    party = Party.seated(communicator, task)
    communicator.reply({"num_records": party.num_records, "dtypes": party.dtypes})
    while True:
        asked, arrays = communicator.command()
        if "do" not in asked:
            return
        with party.answering():
            request = Request.from_dict(asked)
            words, released = party.do(request, arrays)
            if isinstance(request, Reveal) and party.answers is not None:
                write_answer(party.answers, task.told_file)
            # everybody has the same state after the same releases, so the starter takes it from one
            communicator.reply(words, **({} if isinstance(request, Iterate) and communicator.rank else released))


def _own_records(
    communicator: Communicator, end: PartyProtocol, task: PartyTask, schema: Schema
) -> tuple[VerticalDataset, int, Sequence[str]]:
    """This party's encoded columns, in the ids' order, N, and the ids, once all parties have found the same ids.

    Holders have records of their own: N is their sum, and all that a holder learns of the others' numbers is theirs.

    :raises DataError: the table breaks the schema.
    :raises AlignmentError: the parties' ids differ.
    """
    own, ids = task.read_records(schema)
    if task.holders:
        return own, own.num_records if communicator.is_dry_run else _records_of_all(end, task, own.num_records), ()
    of_rows = [repr(party) for party, part in schema.parties.items() if part.rows is not None]
    try:
        check_alike(communicator, ids, list(schema.parties), end.all_hold)
    except AlignmentError as error:
        if not of_rows:
            raise
        raise AlignmentError(
            f"{error}. Rows become records at {', '.join(of_rows)}, where no other party's ids are known: a person of "
            "whom there is no row needs one of the id alone there"
        ) from None
    return own, own.num_records, ids


def _records_of_all(end: PartyProtocol, task: PartyTask, own: int) -> int:
    """N, which no holder's own number may pass: how often a batch is cut is bounded by N.

    :raises CheckFailedError: it does, or a holder failed a check; nothing else was computed.
    """
    try:
        counted = int(end.noisy_sum(np.array([own], np.int64), np.zeros(1, np.int64))[0])
    except CheckFailedError as error:
        raise error.named(task.parties) from None
    if counted < own:
        raise CheckFailedError(
            f"the holders' numbers of records add up to fewer than {task.party!r} has: another one gave a number that "
            "is none; nothing was computed"
        )
    return counted


def check_alike(
    communicator: Communicator,
    ids: Sequence[str],
    parties: Sequence[str],
    all_hold: Callable[[bytes], bool | None] = lambda _: None,
) -> None:
    """Compares the parties' ids, in ascending order each, by digests under a key that is fresh and theirs alone.

    :param all_hold: see `PartyProtocol.all_hold`; where it says nothing, the parties show each other their digests.
    :raises AlignmentError: they differ; names the parties on each side, where they are known.
    """
    digest = alignment_digest(ids, fresh_bytes(communicator.all_gather)).encode()
    alike = all_hold(digest)
    if alike is None:
        found = communicator.all_gather(digest, len(digest))
        check_digests({party: text.decode() for party, text in zip(parties, found, strict=True)})
    elif not alike:
        raise records_differ(parties[1:], parties[:1]) if len(parties) == 2 else records_differ(parties)


@final
class Party:
    """One party in one session, wherever it runs.

    Whoever asks, it refuses a plan that does not fit its own table, what the plan does not release at a step, and a
    step that its own ledger has on record as something else.

    :ivar answers: what this party alone was told last of each record (`Session.reveal_to`), or None. Secret.
    """

    def __init__(
        self, communicator: Communicator, end: PartyProtocol, task: PartyTask, facts: TableFacts, own: VerticalDataset,
        method: Method, ids: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._communicator, self._end, self._task, self._own, self._method = communicator, end, task, own, method
        self._facts = facts
        self._run: Run | None = None
        self._work: PartyComputation | None = None
        self._openings: RevealLog | None = None
        self._batches: BatchStream | None = None
        self._ids, self.answers = ids, None

    @classmethod
    def seated(cls, communicator: Communicator, task: PartyTask) -> Party:
        """The party with its end of the secure computation, and its records matched with the others'.

        :raises SchemaError: another party's schema says something else.
        :raises DataError: the table breaks the schema.
        :raises AlignmentError: the parties' ids differ.
        :raises ArgumentError: the method is for columns where the parties hold whole records, or the other way round.
        """
        schema, method = task.read_schema(), task.build()
        backend = method.backend
        assert isinstance(backend, BetweenProcesses)
        check_holding(method, task)
        task.check_schema(communicator, schema)
        end = backend.end(communicator, len(task.parties))
        own, num_records, ids = _own_records(communicator, end, task, schema)
        return cls(communicator, end, task, TableFacts(schema, num_records, task.holders), own, method, ids)

    @property
    def num_records(self) -> int:
        """N, public."""
        return self._facts.num_records

    def close(self) -> None:
        """Nothing more is asked of this party."""
        self._end.close()

    @property
    def dtypes(self) -> Mapping[str, str | None]:
        """The storage types of this party's columns, public."""
        return self._own.schema.dtypes

    def do(self, request: Request, arrays: Arrays) -> Reply:
        """What is asked for; the reply holds what is released and public facts."""
        match request:
            case Begin():
                return self._begin(request)
            case Publish():
                released = self._publish(request)
                return self._reply(released.words, released.arrays)
            case Multiply() | Sum():
                widths, values = self._opened(request)
                return self._reply({"widths": list(widths)}, {"values": values})
            case Iterate():
                return self._iterate(request, arrays)
            case Reveal():
                return self._reveal(request)
        raise AssertionError(type(request))

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Closes the ledger where a command fails: the process ends, and the next one may go on."""
        try:
            yield
        except BaseException as error:
            if self._run is not None:
                self._run.ledger.pause()
            if isinstance(error, CheckFailedError):
                raise error.named(self._task.parties) from None
            raise

    # -- a plan ------------------------------------------------------------------------------------

    def _begin(self, request: Begin) -> Reply:
        """Agree on a plan with the other parties, and open this party's ledger for it.

        :raises ArgumentError: the plan was made for another table or method, or wants what parties cannot keep.
        :raises PlanSpentError: this party agreed to another plan, or has begun this one and the starter has not.
        """
        plan: Plan = Plan.from_dict(request.plan)
        fingerprint = plan.fingerprint()
        if self._task.approved not in (None, fingerprint):
            raise PlanSpentError(
                f"this party agreed to plan {self._task.approved}, and was asked for {fingerprint}; nothing was done"
            )
        check_apart(plan)
        self._method.check(self._facts, plan)
        level = {"verified": True} if self._end.verifies_tables else {}
        self._agree(
            {"begin": fingerprint, **level},
            "the parties were given different plans, or different `security`; make them alike and start the run again",
        )
        if self._run is not None:
            self._run.ledger.pause()
        self._run = run = self._opened_run(plan, resume=request.resume)
        source = party_sources(1 + len(self._facts.parties), self._task.insecure_seed, run.first_step)[
            self._communicator.rank
        ]
        columns = self._own.arrays(self._task.columns_of)
        self._work = self._method.work(self._facts, self._task.party, columns, plan, source)
        self._work.verified = self._end.verifies_tables
        self._openings, self._batches = RevealLog(self._communicator, self._end, run, self._task.party), None
        return {"fingerprint": fingerprint, "steps_spent": run.ledger.steps_spent}, {}

    def _opened_run(self, plan: Plan, *, resume: bool) -> Run:
        folder, begun = self._task.folder_of(plan.plan_id), self._task.has_begun(plan.plan_id)
        if begun and not resume:
            raise PlanSpentError(
                f"this party has plan {plan.plan_id} on record: it was begun before. Continue that run with "
                "resume=True (`--resume`), or make a new plan, whose cost adds to this one's"
            )
        secure = self._task.insecure_seed is None
        return Run.opened(
            plan, folder, results=SENT, resume=begun, secure_noise=secure, account=self._task.account, private=True
        )

    # -- releases ----------------------------------------------------------------------------------

    def _publish(self, request: Publish) -> Payload:
        """A release of this party's columns: as it was sent before, or now, once it is on record."""
        run, work, _ = self._asked_in_turn(request)
        assert request.step is not None  # the method's check
        released = run.step(request.step, lambda: work.publish(request))
        if released is None:
            raise lost(run, self._task.party, request.step)
        return released

    def _opened(self, request: Multiply | Sum) -> tuple[tuple[int, ...], np.ndarray]:
        """(widths of the factors of a product, a product's or a sum's result int64 flat)."""
        _, work, openings = self._asked_in_turn(request)
        # What lay ready by a protocol that verified nothing is another's, and is never opened by one that does.
        verified = {"verified": True} if self._is_verified(request, work) else {}
        digest = self._agree({**request.to_dict(), **verified})
        widths = work.widths(request) if isinstance(request, Multiply) else ()

        def protocol() -> np.ndarray:
            if isinstance(request, Sum):
                vector = work.summand(request)
                shares = work.adds_shares(request)
                return self._end.noisy_sum(vector, work.noise(request, vector.size), of_shares=shares)
            size = sum(widths[i] * widths[j] for j in range(len(widths)) for i in range(j))
            matrix = work.factor(request)
            matrix = matrix if isinstance(matrix, RowBlocks) else np.ascontiguousarray(matrix, np.int64)
            noise = work.noise(request, size)
            return self._end.noisy_cross_products(matrix, widths, noise, work.input_form(request))

        try:
            values = protocol() if request.step is None else openings.opened(request.step, digest, protocol)
        except CheckFailedError as error:
            raise self._charged(request.step, error.named(self._task.parties)) from None
        work.opened(request, values)
        return widths, values

    def _charged(self, step: int | None, error: CheckFailedError) -> CheckFailedError:
        """Closes the plan after a failed check, of which each may be a draw of a soundness error; and says so.

        After the opening the step counts already, and what was sent may be sent again as it was.
        """
        run, *_ = self._spending()
        stored = None if step is None else run.stored(step)
        if stored is not None and stored.words["sent"]:
            return error
        run.ledger.fail(str(error), 1 if step is None else step + 1)
        return CheckFailedError(
            f"{error}. The attempt counts as spent, and {self._task.party!r} has closed plan {run.plan.plan_id}: find "
            "out together who sent what, then make a new plan, whose cost adds to this one's"
        )

    def _is_verified(self, request: Multiply | Sum, work: PartyComputation) -> bool:
        if not self._end.verifies_tables:
            return False
        return isinstance(request, Sum) or work.input_form(request) is not None

    def _iterate(self, request: Iterate, arrays: Arrays) -> Reply:
        """Steps of an iterative method; each chunk is on record before it begins."""
        run, work, _ = self._spending()
        plan, count = run.plan, request.count
        request.check_turn(plan, run.ledger.steps_spent, begun=self._batches is not None)
        assert isinstance(plan, NoisySumPlan)
        self._agree({**request.to_dict(), "state": _digest_of(arrays)})
        if self._batches is None:
            self._batches = self._stream(plan, request.step - plan.first_gradient)
            run.ledger.reserve_up_to(request.step)
        batches = self._batches.next(count)
        if not self._task.holders:
            batches.check(plan.num_records, plan.sampling.max_batch_size)
        run.ledger.reserve(count)
        try:
            reached = work.iterate(self._end, batches, arrays)
        except CheckFailedError as error:
            raise self._charged(request.step + count - 1, error.named(self._task.parties)) from None
        return self._reply({"digest": _digest_of(reached.arrays)}, reached.arrays)

    def _reveal(self, request: Reveal) -> Reply:
        """See `Session.reveal_to`. What it comes to stays here, so it is no part of the reply."""
        method = check_agreed(self._method, request.digest)
        method.check_records(self._facts.schema)
        self._agree({"tell": request.digest}, "the parties were asked to tell different things; nothing was sent")
        vector = method.vector(self._task.party, self._own.arrays(self._task.columns_of))
        values = reveal_to_one(self._communicator, self._end, method, self._task.parties.index(method.receiver), vector)
        self.answers = None
        if values is not None:
            self.answers = identified(method.answer(values), self._facts.schema.id_column, self._ids)
        return {"words": {}, **self._traffic}, {}

    def _stream(self, plan: NoisySumPlan, first_step: int) -> BatchStream:
        """Batches that all parties tossed for; or a holder's, of its own records, which nobody else sees."""
        if self._task.holders:
            own = self._own.num_records
            assert isinstance(plan.sampling, PoissonSampling)  # the method's check
            return plan.sampling.of_a_part(own).start(own, SystemRandomSource(), first_step=first_step)
        # an echo shows the seed of another number than it committed to
        source = (
            SharedRandomSource.fresh()
            if self._communicator.is_dry_run
            else toss_coins(self._communicator.all_gather, self._communicator.rank)
        )
        return plan.sampling.start(plan.num_records, source, first_step=first_step)

    def _asked_in_turn(self, request: ReleaseRequest) -> tuple[Run, PartyComputation, RevealLog]:
        """What a release needs, if the plan has this one, and every step before it is on record.

        :raises ArgumentError: the plan releases something else at that step.
        :raises PlanSpentError: there is no such step, or an earlier one has not been released.
        """
        run, work, openings = self._spending()
        request.check_turn(run.plan, run.ledger.steps_spent)
        work.check(request)
        return run, work, openings

    def _agree(self, words: Words, differs: str = _DIFFERS) -> str:
        """A digest of what this party was asked for, which all parties were.

        :raises BackendError: they were not; nothing was done.
        """
        digest = hashlib.sha256(json.dumps(dict(words), sort_keys=True).encode())
        if len(set(self._communicator.all_gather(digest.digest(), _DIGEST))) > 1:
            raise BackendError(differs)
        return digest.hexdigest()

    # -- replies -----------------------------------------------------------------------------------

    def _spending(self) -> tuple[Run, PartyComputation, RevealLog]:
        if self._run is None or self._work is None or self._openings is None:
            raise PlanSpentError("no plan was begun at this party")
        return self._run, self._work, self._openings

    def _reply(self, words: Words, arrays: Arrays) -> Reply:
        run, _, openings = self._spending()
        if openings.complete:
            run.ledger.finish()
        return {"words": dict(words), **self._traffic}, arrays

    @property
    def _traffic(self) -> dict[str, Any]:
        return {"traffic": vars(self._end.traffic), "dealer": vars(self._end.dealer_traffic)}


def check_holding(method: Method, task: PartyTask) -> None:
    """Refuses a method whose privacy table speaks of parties that hold something else than these.

    :raises ArgumentError: says what to do.
    """
    if isinstance(method, HorizontalMethod) == bool(task.holders):
        return
    name = type(method).__name__
    if task.holders:
        raise ArgumentError(f"{name} is for parties with columns of the same records, and these hold whole records")
    raise ArgumentError(f"{name} is for holders of whole records: give the tasks holders, the names of all of them")


def check_apart(plan: Plan) -> None:
    """Refuses a plan that promises what parties in their own processes cannot keep.

    :raises ArgumentError: names the setting, hidden batch indices or trusted noise.
    """
    if getattr(plan, "batch_indices", "known") == "hidden":
        raise ArgumentError(
            'batch_indices="hidden": the parties look up the records of a batch themselves, so they know them; '
            'choose "known"'
        )
    noise = getattr(plan, "noise", None)
    if noise is not None and noise.kind != "collaborative":
        raise ArgumentError(
            'noise="trusted": every party draws its own share in its own process; choose "collaborative"'
        )


def _digest_of(arrays: Arrays) -> str:
    """SHA-256 of arrays, with their names, types and shapes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
