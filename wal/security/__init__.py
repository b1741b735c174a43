"""What keeps secrets: values that show nowhere, keys and certificates, and TLS with them.

- `secret`: values that show nowhere, and the files that they come from
- `pem_files`: a key with its certificates, and certificates that are trusted, from PEM files
- `tls_contexts`: both sides of TLS, made of these
"""
