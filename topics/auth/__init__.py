"""API keys: which keys exist and what each may do. `topics.http.access` finds the key of a request.

keys          keys, scopes and prefixes, and the comparison of tokens; pure
key_file      reading the file of `TOPICS_API_KEYS_FILE`
served_names  the names that this daemon serves, if others serve the rest; pure
"""
