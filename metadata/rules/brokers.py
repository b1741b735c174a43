"""Decides which brokers are registered; pure functions over the speculative view.

The catalogue's log says which brokers there are, so that every broker sees the same ones. A broker
that says it is alive changes nothing as long as it is where it was.
"""

from collections.abc import Sequence

from metadata.metadata_version import METADATA_VERSION
from metadata.operations import RegisteredBroker
from metadata.records.control import (
    BrokerRegisteredRecord,
    BrokerUnregisteredRecord,
)
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import InvalidRequest


def decide_register_broker(view: SpeculativeView, broker: RegisteredBroker) -> Decision[None]:
    """A record when the broker is new, somewhere else, or in another life.

    Raises InvalidRequest when it writes other metadata than this one.
    """
    if view.broker(broker.broker_id) == broker:
        return Decision((), None)
    if broker.metadata_version != METADATA_VERSION:
        raise InvalidRequest(
            f"broker {broker.broker_id} writes metadata version {broker.metadata_version}, and "
            f"this cluster {METADATA_VERSION}: stop the brokers of one release before those of the "
            "other start"
        )
    view.put_broker(broker.broker_id, broker)
    record = BrokerRegisteredRecord(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        incarnation=broker.incarnation,
        endpoints=broker.endpoints,
        may_lead=broker.may_lead,
        metadata_version=broker.metadata_version,
    )
    return Decision((record,), None)


def decide_leave(view: SpeculativeView, broker: RegisteredBroker) -> Decision[None]:
    """A record when `broker` is registered in this very life.

    Another process with its node id, which was refused, says that it stops as well.
    """
    known = view.broker(broker.broker_id)
    if known is None or known.incarnation != broker.incarnation:
        return Decision((), None)
    return decide_unregister_brokers(view, [broker.broker_id])


def decide_unregister_brokers(view: SpeculativeView, broker_ids: Sequence[int]) -> Decision[None]:
    """One record for each of them that is registered."""
    records = []
    for broker_id in broker_ids:
        if view.broker(broker_id) is not None:
            view.put_broker(broker_id, None)
            records.append(BrokerUnregisteredRecord(broker_id=broker_id))
    return Decision(records, None)
