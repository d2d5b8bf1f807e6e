from __future__ import annotations

from topics.queue.retry_delay import RetryDelay
from topics.runtime.instant import MAX_AHEAD_MS


def test_a_fixed_delay_is_the_same_each_time() -> None:
    assert [RetryDelay("fixed", 700, 10_000, 0.0).delay_ms(1, n) for n in (1, 2, 9)] == [700] * 3
    assert RetryDelay("fixed", 700, 500, 0.0).delay_ms(1, 1) == 500


def test_an_exponential_delay_doubles_up_to_the_longest() -> None:
    delay = RetryDelay("exponential", 100, 1000, 0.0)
    assert [delay.delay_ms(1, n) for n in (0, 1, 2, 3, 4, 5, 10**9)] == [100, 100, 200, 400, 800, 1000, 1000]
    assert RetryDelay("exponential", 1, MAX_AHEAD_MS, 0.0).delay_ms(1, 2**32 - 1) == MAX_AHEAD_MS


def test_jitter_shortens_evenly_and_is_the_same_after_a_restart() -> None:
    delay = RetryDelay("fixed", 1000, 1000, 0.5)
    found = [delay.delay_ms(seq, n) for seq in range(1, 1001) for n in (1, 2)]
    assert found == [delay.delay_ms(seq, n) for seq in range(1, 1001) for n in (1, 2)]
    assert 500 <= min(found) < 520
    assert 980 < max(found) <= 1000
    assert 735 < sum(found) / len(found) < 765
    assert all(delay.delay_ms(seq, 1) <= 1000 for seq in range(100))
    assert RetryDelay("fixed", 1000, 1000, 1.0).delay_ms(5, 1) >= 0
