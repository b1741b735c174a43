"""The metrics of transactions, read from the router's statistics."""

from collections.abc import Callable, Sequence

from diskless.metrics import MetricsOf, MetricSource
from diskless.transactions.transaction_router import TransactionRouter


def transaction_metrics(router: Callable[[], TransactionRouter]) -> Sequence[MetricSource]:
    """Each broker tells of the transactional ids that it coordinates."""
    transactions = MetricsOf(lambda: router().statistics())
    return [
        transactions.gauge(
            "diskless_transactional_ids",
            "Transactional ids that are known to the coordinators here",
            lambda it: it.ids,
        ),
        transactions.gauge(
            "diskless_transactions_ongoing",
            "Transactions that began and are not decided",
            lambda it: it.ongoing,
        ),
        transactions.gauge(
            "diskless_transactions_oldest_seconds",
            "Since the oldest of these began; 0 when there is none",
            lambda it: it.oldest_s,
        ),
        transactions.gauge(
            "diskless_transactions_ending",
            "Transactions that are decided, and of which not every coordinator has heard",
            lambda it: it.ending,
        ),
        transactions.counters(
            "diskless_transactions_ended",
            "outcome",
            "Transactions that were decided here, by outcome",
            lambda it: it.ended,
        ),
    ]
