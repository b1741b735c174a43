"""The tables of the SQLite state: `tables` has them, `transactions` those of transactions.

`state_table` is what they share.
"""

from metadata.state.schema.state_table import SCHEMA as SCHEMA
from metadata.state.schema.state_table import Row as Row
from metadata.state.schema.state_table import StateTable as StateTable
from metadata.state.schema.state_table import compiled as compiled
from metadata.state.schema.tables import ACCESS_TOKENS as ACCESS_TOKENS
from metadata.state.schema.tables import ACLS as ACLS
from metadata.state.schema.tables import APPLIED as APPLIED
from metadata.state.schema.tables import APPLIED_CHECKSUM as APPLIED_CHECKSUM
from metadata.state.schema.tables import ASSIGNMENTS as ASSIGNMENTS
from metadata.state.schema.tables import BATCHES as BATCHES
from metadata.state.schema.tables import BROKERS as BROKERS
from metadata.state.schema.tables import CLIENT_QUOTAS as CLIENT_QUOTAS
from metadata.state.schema.tables import COMMIT_PERIOD_MS as COMMIT_PERIOD_MS
from metadata.state.schema.tables import CONSUMER_GROUPS as CONSUMER_GROUPS
from metadata.state.schema.tables import FILE_ANSWERS as FILE_ANSWERS
from metadata.state.schema.tables import FILES as FILES
from metadata.state.schema.tables import GROUP_OFFSETS as GROUP_OFFSETS
from metadata.state.schema.tables import LEADERSHIP as LEADERSHIP
from metadata.state.schema.tables import LEFT_SEGMENTS as LEFT_SEGMENTS
from metadata.state.schema.tables import NOT_DELETABLE as NOT_DELETABLE
from metadata.state.schema.tables import PARTITIONS as PARTITIONS
from metadata.state.schema.tables import PRODUCER_IDS as PRODUCER_IDS
from metadata.state.schema.tables import PRODUCER_STATES as PRODUCER_STATES
from metadata.state.schema.tables import REWRITES as REWRITES
from metadata.state.schema.tables import SCRAM_CREDENTIALS as SCRAM_CREDENTIALS
from metadata.state.schema.tables import SEGMENT_PLANS as SEGMENT_PLANS
from metadata.state.schema.tables import SEGMENTS as SEGMENTS
from metadata.state.schema.tables import SINKS as SINKS
from metadata.state.schema.tables import STATE_TABLES as STATE_TABLES
from metadata.state.schema.tables import STATE_VERSION as STATE_VERSION
from metadata.state.schema.tables import SWEPT as SWEPT
from metadata.state.schema.tables import TABLES as TABLES
from metadata.state.schema.tables import TOPIC_COLUMNS as TOPIC_COLUMNS
from metadata.state.schema.tables import TOPIC_CONFIGS as TOPIC_CONFIGS
from metadata.state.schema.tables import TOPICS as TOPICS
from metadata.state.schema.tables import access_token_of as access_token_of
from metadata.state.schema.tables import acl_of as acl_of
from metadata.state.schema.tables import acl_row as acl_row
from metadata.state.schema.tables import float_bits as float_bits
from metadata.state.schema.tables import float_of_bits as float_of_bits
from metadata.state.schema.tables import pack_owners as pack_owners
from metadata.state.schema.tables import pack_ranges as pack_ranges
from metadata.state.schema.tables import unpack_owners as unpack_owners
from metadata.state.schema.tables import unpack_ranges as unpack_ranges
from metadata.state.schema.transactions import ABORTED_TRANSACTIONS as ABORTED_TRANSACTIONS
from metadata.state.schema.transactions import CLOSED_TRANSACTIONS as CLOSED_TRANSACTIONS
from metadata.state.schema.transactions import CONSTANTS as CONSTANTS
from metadata.state.schema.transactions import MARKERS as MARKERS
from metadata.state.schema.transactions import OF_PARTITIONS as OF_PARTITIONS
from metadata.state.schema.transactions import OPEN_TRANSACTIONS as OPEN_TRANSACTIONS
from metadata.state.schema.transactions import PENDING_OFFSETS as PENDING_OFFSETS
from metadata.state.schema.transactions import TRANSACTION_PARTS as TRANSACTION_PARTS
from metadata.state.schema.transactions import TRANSACTIONS as TRANSACTIONS
