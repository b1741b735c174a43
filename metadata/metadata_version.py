"""Which metadata this release writes: what its brokers put into metadata logs.

Counted up with every new kind of record, and with every change of one. A leader says its own in its
first record, whose layout stays, and a broker when it registers; brokers of different versions
refuse each other, since each has to read what any other may write.
"""

from typing import Final

METADATA_VERSION: Final = 2
