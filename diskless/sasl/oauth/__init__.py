"""OAUTHBEARER: a token of somebody else, an authorization server, says who a client is.

- `exchange`: the messages of the mechanism. Read this first.
- `tokens`: whether a token is good, and whose it is
- `token_keys`: the keys that tokens are signed with, and when they are asked for again
- `key_source`: where those keys come from, a URL or a file
- `oauth_settings`: the section of the configuration
"""
