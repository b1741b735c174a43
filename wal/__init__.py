"""Ground floor: record batches, buffers, chunk files, WAL objects, object stores, caches.

Bytes and files only. Nothing here knows what a topic's name, a coordinator or a Kafka request is;
what a lower layer needs from above arrives as an argument typed by a small `Protocol`.
"""
