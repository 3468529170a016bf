"""Sampling: the drawn tokens against a plain reference, their probabilities, grammars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from engines import GREEDY, ROUNDING, TOKENS, distributions, exact, generated, written
from fixture_types import Load, Model
from gguf_models import N_VOCAB, token_id
from plain_sampling import assert_as_frequent, draws, filtered
from reference import log_softmax

from tgr_local.engine import Engine, Sampling, Task

FILTERS = [
    Sampling(),
    Sampling(0.3),
    Sampling(2.5),
    Sampling(0.7, top_k=5),
    Sampling(1.3, top_p=0.5),
    Sampling(0.7, min_p=0.3),
    Sampling(2.0, top_k=40, top_p=0.9, min_p=0.02),
    Sampling(1.0, logit_bias=((7, 3.0), (8, -math.inf))),
    Sampling(1.5, top_p=0.8, logit_bias=((7, 3.0),)),
    Sampling(1.2, top_n_sigma=1.5),
    Sampling(1.2, top_n_sigma=1.0, top_k=8, logit_bias=((7, 3.0), (8, -math.inf))),
    Sampling(0.8, typical_p=0.6),
    Sampling(1.5, typical_p=0.3, top_k=30, top_p=0.8, min_p=0.3),
    Sampling(0.9, dynatemp_range=0.6),
    Sampling(0.5, dynatemp_range=1.5, dynatemp_exponent=0.5, top_k=12),
    Sampling(1.1, top_n_sigma=2.0, typical_p=0.9, min_p=0.02, dynatemp_range=1.0),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
@exact
def test_draws_have_the_reference_distribution(engine: Engine, sampling: Sampling):
    """χ² over the tokens, the rare ones together; the seeds are fixed, so this passes or fails for
    good. Each log-probability is that of the reference."""
    outputs = draws(engine, 2000, sampling)
    (whole,) = draws(engine, 1, sampling, n_top=engine.n_vocab)
    wanted = filtered(distributions(whole)[0], sampling)
    tokens = [int(output.tokens[0]) for output in outputs]
    reported = np.array([output.sampled_logprobs[0] for output in outputs])
    rounding = ROUNDING / min(1.0, sampling.temperature)  # rows of a batch differ by it
    np.testing.assert_allclose(reported, wanted[tokens], atol=rounding, rtol=0)
    assert_as_frequent(tokens, 2000 * np.exp(wanted))


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_every_token_of_a_text_has_the_probability_it_was_drawn_with(
    engine: Engine, sampling: Sampling
):
    output = written(
        engine, TOKENS, n_generate=40, seed=3, sampling=sampling, ignore_eog=True,
        n_top=engine.n_vocab,
    )  # fmt: skip
    wanted = [
        filtered(logprobs, sampling)[token]
        for logprobs, token in zip(distributions(output), output.tokens, strict=True)
    ]
    np.testing.assert_allclose(output.sampled_logprobs, wanted, atol=2e-6, rtol=0)
    if sampling == Sampling():
        np.testing.assert_array_equal(output.sampled_logprobs, output.logprobs)


@pytest.mark.parametrize("last", [64, 5, 200, -1])
def test_penalties_count_the_last_tokens(engine: Engine, last: int):
    """Positive logits are divided by the repeat penalty, others multiplied; each occurrence costs
    the frequency penalty, any the presence penalty. What the logits are above their log-sum-exp is
    unknown here, so the repeat penalty stands alone in the test below."""
    sampling = Sampling(0.8, frequency_penalty=0.3, presence_penalty=0.5, repeat_last_n=last)
    history = [3] * 30 + TOKENS[:4] * 12
    n = 30
    output = written(
        engine, TOKENS, n_generate=n, seed=3, sampling=sampling, ignore_eog=True, history=history,
        n_top=engine.n_vocab,
    )  # fmt: skip
    read = history + TOKENS + output.tokens.tolist()
    for i, logprobs in enumerate(distributions(output)):
        before = read[: -n + i]
        counts = np.bincount(before if last < 0 else before[-last:], minlength=engine.n_vocab)
        edited = logprobs - 0.3 * counts - 0.5 * (counts > 0)
        wanted = log_softmax(edited / 0.8)[output.tokens[i]]
        assert abs(output.sampled_logprobs[i] - wanted) < 5e-6


def test_samplers_that_leave_one_token_are_greedy(engine: Engine):
    likeliest = generated(engine)
    for only in (
        Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0), Sampling(top_n_sigma=1e-6),
        Sampling(0.5, dynatemp_range=0.5, dynatemp_exponent=1e6),
    ):  # fmt: skip
        assert generated(engine, sampling=only) == likeliest
    assert generated(engine, sampling=Sampling(temperature=5.0)) != likeliest


def test_bias_and_penalties_change_what_is_likeliest(engine: Engine):
    first = generated(engine)[0]
    assert first not in generated(engine, sampling=Sampling(0, logit_bias=((first, -1e9),)))
    assert generated(engine, sampling=Sampling(0, logit_bias=((7, 1e9),))) == [7] * 12
    never_twice = Sampling(0, presence_penalty=100.0)
    without = generated(engine, sampling=never_twice)
    assert len(set(without)) == 12 and not set(without) & set(TOKENS[:4])
    assert first not in generated(engine, sampling=never_twice, history=[first])


@exact
def test_a_repeat_penalty_makes_a_recent_token_rarer(engine: Engine):
    plain = draws(engine, 1, Sampling(), n_top=engine.n_vocab)[0]
    likeliest = int(plain.top_ids[0][0])
    near_one = Sampling(0, repeat_penalty=50.0)  # a positive logit goes to nearly nothing
    assert draws(engine, 1, near_one)[0].tokens[0] == likeliest
    assert draws(engine, 1, near_one, history=[likeliest])[0].tokens[0] != likeliest


def test_the_likeliest_token_is_certain_at_temperature_0(engine: Engine):
    for output in draws(engine, 3, GREEDY):
        assert output.sampled_logprobs.tolist() == [0.0] and output.logprobs[0] < -0.1


@exact
def test_log_probabilities_of_a_large_vocabulary_are_exact(model: Model, load: Load):
    """Sums in blocks over a vocabulary that is no multiple of them, against float64."""
    engine = load(model(n_extra=5000))
    for sampling in FILTERS:
        outputs = draws(engine, 20, sampling, n_top=engine.n_vocab)
        logprobs = distributions(outputs[0])[0]
        p = np.exp(logprobs)
        assert abs(p.sum() - 1) < 1e-6
        assert abs(outputs[0].entropies[0] + (p * logprobs).sum()) < 2e-6
        wanted = filtered(logprobs, sampling)
        for output in outputs:
            assert abs(output.sampled_logprobs[0] - wanted[output.tokens[0]]) < 1e-4
        drawn = [output.tokens[0] for output in outputs]
        assert max(drawn) > 1024 or sampling.logit_bias  # from behind the first block too


def test_top_tokens_are_the_likeliest_in_order(engine: Engine):
    every = draws(engine, 1, GREEDY, n_top=engine.n_vocab)[0]
    logprobs = distributions(every)[0]
    assert every.top_ids[0].tolist() == np.argsort(-logprobs, kind="stable").tolist()
    for n in (1, 5, 20):
        some = draws(engine, 1, GREEDY, n_top=n)[0]
        assert some.top_ids[0].tolist() == every.top_ids[0][:n].tolist()
        np.testing.assert_array_equal(some.top_logprobs[0], every.top_logprobs[0][:n])


# --- grammars ---

DIGITS = 'root ::= "a" [0-9] [0-9] "b" [0-9] [0-9] "c"'


def rules(rule: str, n: int) -> str:
    """A chain of n rules, each of which names the next."""
    chain = "\n".join(rule.format(i, i + 1) for i in range(n))
    return f'root ::= a0\n{chain}\na{n} ::= "x"'


def text_of(engine: Engine, tokens: Any) -> str:
    return engine.detokenize(tokens).decode()


def test_a_grammar_decides_what_may_be_written(engine: Engine):
    tokens = generated(engine, sampling=Sampling(1.0, grammar='root ::= "7" [a-c]*'))
    text = engine.detokenize(tokens).decode()
    assert text[0] == "7" and set(text[1:]) <= set("abc")


def test_a_grammar_continues_from_task_to_task(engine: Engine):
    """In pieces of two tokens it is the text that one task writes."""
    sampling = Sampling(0, grammar=DIGITS)
    whole = generated(engine, sampling=sampling, ignore_eog=False)
    with engine.session(64, 1) as session:
        sequence, tokens, feed = session.sequence(), list[int](), TOKENS[:4]
        while not tokens or tokens[-1] not in engine.end_tokens:
            task = Task(sequence, feed, n_generate=2, sampling=sampling, grammar_history=tokens)
            tokens += session.run([task])[0].tokens.tolist()
            feed = tokens[-1:]
            assert len(tokens) < 20
    assert tokens == whole
    assert text_of(engine, tokens[:-1])[0::3] == "abc"


def test_forks_share_a_grammar_history_and_diverge(engine: Engine):
    begun = engine.tokenize("a12")
    sampling = Sampling(5.0, grammar=DIGITS)
    outputs = draws(engine, 20, sampling, n_generate=4, grammar_history=begun)
    texts = {text_of(engine, output.tokens) for output in outputs}
    assert len(texts) > 5
    assert all(text[0] == "b" and text[1:3].isdigit() and text[3] == "c" for text in texts)


def test_a_grammar_that_is_over_ends_the_text(engine: Engine):
    begun = engine.tokenize("a12b34c")
    output = draws(engine, 1, Sampling(grammar=DIGITS), grammar_history=begun, n_generate=5)[0]
    assert set(output.tokens.tolist()) <= engine.end_tokens


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ("x", "which the grammar does not allow there"),
        ("a1x", "which the grammar does not allow there"),
        ([token_id("<|im_end|>")], "which the grammar does not allow there"),
        ([N_VOCAB], f"grammar_history holds token {N_VOCAB}"),
        ([-1], "grammar_history holds token -1"),
    ],
)
def test_a_history_that_no_grammar_allows_is_refused(engine: Engine, history: Any, message: str):
    tokens = engine.tokenize(history) if isinstance(history, str) else history
    with pytest.raises(ValueError, match=message):
        draws(engine, 1, Sampling(grammar=DIGITS), grammar_history=tokens)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root = x", "expecting ::= at = x"),
        ('root ::= "a', "unexpected end of input"),
        ("root ::= nobody", "Undefined rule identifier 'nobody'"),
        ('start ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a"', "left recursion"),
        ("root ::= [^", "unexpected end of input"),
        ("root ::= (", "expecting"),
        ('root ::= "a"{9999999}', "repetitions"),
        ('root ::= "a"{99999999999999999999999}', "does not parse"),
        ("root ::= " + "(" * 100_000, "nests more than 500"),
        ("#" + ")" * 100_000 + "\nroot ::= " + "(" * 100_000, "nests more than 500"),
        ('root ::= "' + ")" * 1000 + '" ' + "(" * 1000, "nests more than 500"),
        (rules('a{0} ::= a{1} | a{1} "x"', 60), "too much work"),
        ('root ::= empty root "a"\nempty ::= none\nnone ::= ""', "left recursion"),
        ("root ::= [x] | (root? [y])*", "left recursion"),
        ('root ::= "a"{5,2}', "ends before it begins"),
        ("root ::= []", "class is empty"),
        ('root ::= "\\q"', "expecting a known escape"),
        ('root ::= "\\u12"', "2 more hex digits"),
        ("root ::= <nothing>", "'<nothing>' is no token"),
        ("root ::= <" + "x" * 100_000 + ">", "expecting a token's text"),
        (" ", "does not parse"),
        ('root ::= "a"\0', "NUL"),
        ("root ::= " + '"a" ' * 300_000, "bytes"),
        ("root ::= <[99999999999]>", "too big"),
    ],
    ids=lambda text: text[:20],
)
def test_a_bad_grammar_is_a_value_error_and_nothing_is_printed(
    engine: Engine, grammar: str, message: str, capfd
):
    with pytest.raises(ValueError, match=message) as error:
        draws(engine, 1, Sampling(grammar=grammar))
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "text",
    [
        "[ -~] (((([ -~]?){400}){400}){400}){400}",
        "[ -~] root" + "".join(f' | [ -~] root "{letter}"' for letter in "abcdefgh"),
    ],
    ids=["repeated", "eight ways to go on"],
)
def test_a_grammar_that_can_be_read_in_countless_ways_is_an_error_of_its_job(
    engine: Engine, text: str
):
    with pytest.raises(ValueError, match="too much work"):
        draws(engine, 1, Sampling(grammar=f"root ::= {text}"), n_generate=8)
    assert len(draws(engine, 1, Sampling(grammar=DIGITS))) == 1


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "#)" ' + "(" * 400 + '"x"' + ")" * 400,
        rules("a{} ::= a{}", 10_000),
        rules("a{0} ::= a{1} | a{1}", 60),
        "root ::= " + '"a"{0,2000} ' * 500 + '"b"',
        "root ::= " + "[a-z0-9 ]* " * 300 + "[A-Z]",
        'root ::= (("a"?){40}){40} "b"',
    ],
    ids=["nested", "chain", "two ways at every rule", "repetitions", "many ways", "empty parts"],
)
def test_a_grammar_may_be_large(engine: Engine, grammar: str):
    assert text_of(engine, draws(engine, 1, Sampling(grammar=grammar))[0].tokens)


def test_a_grammar_may_have_many_words(engine: Engine):
    words = [f"word{i}" for i in range(2000)]
    grammar = "root ::= " + " | ".join(f'"{word}"' for word in words)
    output = draws(engine, 1, Sampling(grammar=grammar), n_generate=8)[0]
    tokens = [token for token in output.tokens.tolist() if token not in engine.end_tokens]
    assert text_of(engine, tokens) in words


def test_a_grammar_without_a_token_is_an_error_of_its_job(engine: Engine):
    banned = tuple((i, -math.inf) for i in range(engine.n_vocab))
    with pytest.raises(ValueError, match="no token is left"):
        draws(engine, 1, Sampling(logit_bias=banned))
    assert len(draws(engine, 1, Sampling())) == 1


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(-1.0), "temperature is -1"),
        (Sampling(math.nan), "temperature is -?nan"),
        (Sampling(math.inf), "temperature is inf"),
        (Sampling(top_k=-1), "top_k is -1"),
        (Sampling(top_p=1.5), "top_p is 1.5"),
        (Sampling(min_p=-0.1), "min_p is -0.1"),
        (Sampling(top_n_sigma=-1.0), "top_n_sigma is -1"),
        (Sampling(typical_p=1.5), "typical_p is 1.5"),
        (Sampling(typical_p=math.nan), "typical_p is -?nan"),
        (Sampling(dynatemp_range=-0.5), "dynatemp_range is -0.5"),
        (Sampling(dynatemp_exponent=math.inf), "dynatemp_exponent is inf"),
        (Sampling(repeat_last_n=-2), "repeat_last_n is -2"),
        (Sampling(repeat_penalty=0.0), "repeat_penalty is 0"),
        (Sampling(frequency_penalty=math.nan), "frequency_penalty"),
        (Sampling(logit_bias=((3, math.nan),)), "logit_bias of token 3"),
        (Sampling(logit_bias=((3, math.inf),)), "logit_bias of token 3"),
        (Sampling(logit_bias=((-1, 1.0),)), "logit_bias names token -1"),
        (Sampling(xtc_probability=1.5), "xtc_probability is 1.5"),
        (Sampling(xtc_threshold=-0.1), "xtc_threshold is -0.1"),
        (Sampling(dry_multiplier=-1.0), "dry_multiplier is -1"),
        (Sampling(dry_multiplier=math.nan), "dry_multiplier is -?nan"),
        (Sampling(dry_multiplier=1.0, dry_base=0.5), "dry_base is 0.5"),
        (Sampling(dry_multiplier=1.0, dry_allowed_length=-1), "dry_allowed_length is -1"),
        (Sampling(dry_multiplier=1.0, dry_penalty_last_n=-2), "dry_penalty_last_n is -2"),
        (Sampling(dry_multiplier=1.0, dry_sequence_breakers=("",)), "an empty text"),
    ],
    ids=str,
)
def test_bad_sampling_is_refused(engine: Engine, sampling: Sampling, message: str):
    with pytest.raises(ValueError, match=message):
        draws(engine, 1, sampling)
