"""`ktae report`: see the key tokens of rollouts. Needs the extra `report`.

`rollouts`  files of rollouts, in the formats of veRL and others -> groups
`tokens`    text or ids -> tokens
`analysis`  a group -> its key tokens, and what chance gives
`terminal`  the summary and tables
"""
