"""Races between streams, and between the host and copies that are under way: found by what orders two uses of memory.

`order` knows what happens before what, `accesses` which uses of one memory overlap, `watch` looks at each and warns.
"""
