"""Plug-ins of servers: what makes vLLM and SGLang use this package on an MI300X.

A plug-in consists of parts, and each part checks what it replaces: a server that isn't as expected keeps its own way
there, and one line of the log says so. ``docs/serving.md`` has a table of the versions that were tried.
"""
