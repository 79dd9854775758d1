"""`ktae report`: see the key tokens of rollouts. Needs the extra `report`.

`arguments`, `command`  the command line
`rollouts`  what a group of rollouts is; with `jsonl` and `columns`, files in the formats of veRL and others -> groups
`tokens`    text or ids -> tokens
`analysis`  a group -> its key tokens, and what chance gives
`summary`   the analyses of many groups -> figures
`terminal`  the summary and tables
`distributions`, `page`  the HTML file
`training`  the steps of a run, plotted
"""
