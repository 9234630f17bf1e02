"""Policies: which job comes next, which gives way, and how long that takes.

Pure: what is asked is passed in whole, and what is answered changes nothing. Knows neither a store nor a clock nor an
engine; chance is an argument.
"""
