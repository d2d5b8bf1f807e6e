"""API keys: which there are, and what each of them may do. Which request carries which key is `topics.http.access`'s
business.

    keys       keys, scopes, prefixes, and how a key is recognised; pure
    key_file   reading the file of `TOPICS_API_KEYS_FILE`
"""
