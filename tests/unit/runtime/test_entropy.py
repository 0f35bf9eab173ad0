"""The real rng: tokens that do not repeat, streams that are independent."""

from halfmq.runtime.entropy import SystemEntropy


def test_tokens_have_the_length_asked_for_and_do_not_repeat() -> None:
    tokens = {SystemEntropy().token(16) for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert all(len(token) == 16 for token in tokens)


def test_streams_of_one_purpose_differ_from_start_to_start() -> None:
    entropy = SystemEntropy()
    assert entropy.stream("jitter").random() != entropy.stream("jitter").random()
