"""What keeps secrets: values that show nowhere, keys and certificates, and TLS with them.

- `secret`: values that show nowhere, and the files that they come from
- `pem_files`: a key with its certificates, and certificates that are trusted, from PEM files
- `tls_contexts`: both sides of TLS, made of these
- `security_protocol`: what may be spoken on a socket; `client_security`: what a client brings to it
- `client_login`: as whom a client logs in; `token_source`: where it has tokens from, if by those
"""
