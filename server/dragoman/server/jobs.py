"""One text of a call, and what the engine is asked for it.

Usually that is one request. Independent samples are so many requests, which differ in their seed. Alternatives take
two rounds: one token, of which the engine keeps the best ones, and then a request for each of these, behind which it
has to go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dragoman.model.tokenizers import Tokenizer
from dragoman.server.calls import Gather, Stop, Watch
from dragoman.server.decoding import Decoding
from dragoman.server.errors import InvalidArgument
from dragoman.server.options import SearchOptions
from dragoman.server.request import Priority, Request, Times
from dragoman.server.validate import Source
from dragoman.server.writing import Writer


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf requests are made.

    Attributes:
        name: Callers get equal shares.
        priority: Class of the call.
        submitted: Monotonic seconds.
        deadline: Monotonic seconds; None means no deadline.
    """

    name: str
    priority: Priority
    submitted: float
    deadline: float | None

    def request(self, source: Source, options: SearchOptions, listener: Gather, lead: Sequence[int] = ()) -> Request:
        """Return a request ready to be submitted, whose target begins with `lead` behind what the source forces."""
        return Request(
            source.ids,
            options,
            listener,
            Times(submitted=self.submitted),
            deadline=self.deadline,
            first_target=(*source.forced, *lead),
            caller=self.name,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Where some hypotheses of a text come from.

    Attributes:
        request: Finds them; None where nothing is left to be found.
        lead: Token that they begin with and its log-probability, if it was given to the request.
        seed: Of a sample.
        ended: Of a part without a request: whether it ends with EOS, else at the limit.
    """

    request: Request | None
    lead: tuple[int, float] | None = None
    seed: int | None = None
    ended: bool = False

    @property
    def lead_tokens(self) -> tuple[int, ...]:
        """What of the text was given to the request: the lead, unless that is EOS."""
        return () if self.lead is None or self.ended else self.lead[:1]


@dataclass(slots=True)
class Job:
    """One text of a call.

    Attributes:
        source: Its tokens and limits.
        options: How to decode it.
        parts: In the order of their hypotheses; of a blank text, none.
        first_round: Asks for the best first tokens, if alternatives are wanted.
    """

    source: Source
    options: SearchOptions
    parts: list[Part] = field(default_factory=list)
    first_round: Request | None = None

    @property
    def requests(self) -> list[Request]:
        """What the engine has to finish."""
        return [part.request for part in self.parts if part.request is not None]


def new_job(source: Source, decoding: Decoding, suppressed: tuple[tuple[int, ...], ...]) -> Job:
    """Return a job without requests."""
    return Job(source, replace(decoding.search, max_new_tokens=source.max_new_tokens, suppressed=suppressed))


def ask_for_first_tokens(job: Job, count: int, caller: Caller, gather: Gather) -> Request:
    """Set and return the request of the first round.

    Args:
        job: Of a text that is not blank.
        count: How many tokens; EOS may be one of them.
        caller: Who asks.
        gather: Waits for it.
    """
    options = SearchOptions(
        max_new_tokens=1,
        min_new_tokens=min(1, job.options.min_new_tokens),
        repetition_penalty=job.options.repetition_penalty,
        no_repeat_ngram_size=job.options.no_repeat_ngram_size,
        suppressed=job.options.suppressed,
        alternatives=count,
        with_token_scores=True,
    )
    job.first_round = caller.request(job.source, options, gather)
    return job.first_round


def set_parts(job: Job, decoding: Decoding, eos: int, caller: Caller, gather: Gather) -> None:
    """Make the requests that find a text's hypotheses.

    Args:
        job: Its first round, if it has one, has ended; a blank text gets no requests.
        decoding: Options of the call.
        eos: Ends a text.
        caller: Who asks.
        gather: Waits for all of them.
    """
    options = job.options
    if not job.source.ids:
        return
    if job.first_round is not None:
        leads = [lead for lead in job.first_round.alternatives if lead[1] > -math.inf]
        job.parts = [_continuation(job, lead, eos, caller, gather) for lead in leads]
    elif options.sampling is not None:
        for sample in range(decoding.samples):
            seed = decoding.seed(sample) or 0
            sampled = replace(options, sampling=replace(options.sampling, seed=seed))
            job.parts.append(Part(caller.request(job.source, sampled, gather), seed=seed))
    else:
        job.parts = [Part(caller.request(job.source, options, gather))]


def _continuation(job: Job, lead: tuple[int, float], eos: int, caller: Caller, gather: Gather) -> Part:
    token, _ = lead
    left = job.options.max_new_tokens - 1
    if token == eos or not left:
        return Part(None, lead=lead, ended=token == eos)
    options = replace(job.options, max_new_tokens=left, min_new_tokens=max(0, job.options.min_new_tokens - 1))
    return Part(caller.request(job.source, options, gather, (token,)), lead=lead)


def watch(job: Job, stop_sequences: Sequence[str], tokenizer: Tokenizer, stop: Stop, gather: Gather) -> None:
    """Have every request of a unary call end at its first stop sequence; without sequences there is nothing to do."""
    if not stop_sequences:
        return
    for part in job.parts:
        if part.request is not None:
            writer = Writer(tokenizer, job.source.prefix, stop_sequences)
            for token in part.lead_tokens:
                writer.push(token)
            part.request.listener = Watch(part.request, writer, stop, gather)


def check_number(jobs: Sequence[Job], decoding: Decoding, most: int) -> None:
    """Refuse a call that no queue can take.

    Raises:
        InvalidArgument: Texts and samples, or texts and alternatives, are too many together.
    """
    texts = sum(bool(job.source.ids) for job in jobs)
    each = max(1, decoding.samples, decoding.alternatives)
    if texts * each <= most:
        return
    field = "options.num_hypotheses" if decoding.samples else "options.return_alternatives"
    raise InvalidArgument(
        field if each > 1 else "texts",
        f"{each} for each of {texts} texts are {texts * each}, and no more than {most} may wait; send fewer texts",
    )


def check_fits(source: Source, beams: int, max_new_tokens: int, fits: Callable[[int, int, int], bool]) -> None:
    """Refuse a text for which the server's caches are too small even when it is alone.

    Args:
        source: Its tokens.
        beams: Rows that it needs.
        max_new_tokens: Of the search.
        fits: The engine's; takes rows, source tokens and target tokens.

    Raises:
        InvalidArgument: Says how many beams fit, if that is the matter.
    """
    target = len(source.forced) + max_new_tokens
    if fits(beams, len(source.ids), target):
        return
    largest = next((k for k in range(beams - 1, 0, -1) if fits(k, len(source.ids), target)), 0)
    if largest:
        raise InvalidArgument(
            "options.beam_size",
            f"{beams} is more than the {largest} for which the server has memory with the {source.tokens} tokens of "
            f"{source.field} and up to {target} target tokens; ask for fewer beams or new tokens, or split the text",
        )
    raise InvalidArgument(
        source.field,
        f"the server has no memory for {source.tokens} tokens and up to {target} target tokens; ask for fewer new "
        "tokens or split the text",
    )
