"""Lists the metrics that say whether clients are who they say, and do what they may."""

from collections.abc import Sequence
from typing import Protocol

from diskless.audit.audit_log import AuditLog
from diskless.listeners.tls_keys import KeyWatch, TlsKeys
from diskless.metrics import MetricsOf, MetricSource, Samples
from diskless.parts.tokens import Tokens


class _AuditSink(Protocol):
    @property
    def left_out(self) -> int: ...


class _Base(Protocol):
    @property
    def tls(self) -> KeyWatch: ...
    @property
    def audit(self) -> AuditLog: ...
    @property
    def audit_sink(self) -> _AuditSink: ...


class SecuredParts(Protocol):
    """What asks clients who they are, in any process of a broker."""

    @property
    def base(self) -> _Base: ...
    @property
    def tokens(self) -> Tokens: ...


def security_metrics(parts: SecuredParts) -> Sequence[MetricSource]:
    """Those of keys, rights and the audit log."""
    broker = MetricsOf(lambda: parts)
    tls = MetricsOf(lambda: parts.base.tls.keys)
    return [
        tls.gauges(
            "diskless_tls_certificate_expiry_seconds",
            "listener",
            "Until the first certificate of a listener ends",
            lambda it: {keys.listener: keys.expires_in_s() for keys in it},
        ),
        MetricSource(
            "diskless_authorizations_denied",
            "counter",
            "What clients asked for and may not do, by operation and kind of resource",
            ("operation", "resource"),
            lambda: {kind: float(count) for kind, count in parts.base.audit.refusals.items()},
        ),
        broker.counter(
            "diskless_audit_notes_left_out",
            "Notes of the audit log that nothing took up in time",
            lambda it: it.base.audit_sink.left_out,
        ),
        MetricSource(
            "diskless_tls_reloads",
            "counter",
            "Keys that were read again because their files changed, by listener and result",
            ("listener", "result"),
            lambda: _tls_reloads(parts.base.tls.keys),
        ),
        MetricSource(
            "diskless_token_key_loads",
            "counter",
            "How often the keys of the authorization server were read, by result",
            ("result",),
            lambda: {
                (result,): count
                for keys in (parts.tokens.keys,)
                if keys is not None
                for result, count in (("read", keys.loads), ("failed", keys.failed_loads))
            },
        ),
    ]


def _tls_reloads(listeners: Sequence[TlsKeys]) -> Samples:
    return {
        (keys.listener, result): count
        for keys in listeners
        for result, count in (("replaced", keys.reloads), ("failed", keys.failed_reloads))
    }
