"""What keeps secrets.

- `secret`: values that show nowhere, and the files that they come from
"""
