"""The APIs about topics: Metadata, and creating, enlarging, deleting, describing them."""
